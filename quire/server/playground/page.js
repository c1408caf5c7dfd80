// The chat page: its state, one streamed request at a time, and what is shown of it.
// Text of users and models reaches the page as text nodes only.

import { Failure, call, events, parseSchema, receiver, requestBody, useKey, wording } from "./api.js";

const STORE = "quire.playground";
const DEFAULTS = {
  model: "", system: "", temperature: "", top_p: "", max_tokens: "", seed: "", stop: "",
  logprobs: false, json: false, theme: "auto", panel: true,
  schema: `{
  "type": "object",
  "properties": {
    "answer": {
      "type": "string"
    }
  },
  "required": ["answer"],
  "additionalProperties": false
}`,
};
const $ = (id) => document.getElementById(id);
const narrow = matchMedia("(max-width: 56rem)");

/** Make an element; a function among `properties` is a listener, a key with a dash an attribute. */
function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (name.includes("-") || name === "role") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}

// --- State -----------------------------------------------------------------------------------

// A message is {role, content} and, for an answer, {tokens, usage, finish, firstMs, rate, json,
// error}. A token is [text, probability, [[text, probability], ...]].
let settings = { ...DEFAULTS };
let messages = [];
let editing = false;
let running = null; // AbortController of the answer that is being written.

function save() {
  const write = (list) => localStorage.setItem(STORE, JSON.stringify({ settings, messages: list }));
  try {
    write(messages);
  } catch {
    // Probabilities take far more room than text; without them a long conversation still fits.
    try {
      write(messages.map(({ tokens, ...message }) => message));
    } catch {
      notify("The browser has no room to keep this conversation. Export it to keep it.");
    }
  }
}

/** Take over settings and messages from storage or a file; throws when they are something else. */
function adopt(data) {
  const isMessage = (message) =>
    ["user", "assistant"].includes(message?.role) && typeof message.content === "string";
  if (!Array.isArray(data?.messages) || !data.messages.every(isMessage))
    throw new Error("It holds no list of messages with role and content.");
  messages = data.messages;
  for (const [name, value] of Object.entries(DEFAULTS))
    settings[name] = typeof data.settings?.[name] === typeof value ? data.settings[name] : value;
}

/** Ask for an answer to the last message and show it as it comes. */
async function answer() {
  const message = { role: "assistant", content: "", tokens: [], json: settings.json };
  messages.push(message);
  render();
  const article = $("log").lastElementChild;
  article.classList.add("waiting");
  const controller = (running = new AbortController());
  showRunning();
  scrollDown();
  let frame = 0;
  try {
    const take = receiver(message);
    const options = { method: "POST", body: JSON.stringify(requestBody(settings, messages)), signal: controller.signal };
    const response = await call("v1/chat/completions", options);
    let complete = false;
    for await (const data of events(response.body)) {
      complete = data === "[DONE]";
      if (!complete) take(JSON.parse(data));
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        if (running === controller) paint(article, message);
      });
    }
    if (!complete) throw new Failure(0, "The answer broke off", "The connection was lost.");
  } catch (error) {
    if (controller.signal.aborted) message.finish = "you";
    else message.error = wording(error);
  }
  cancelAnimationFrame(frame);
  if (running === controller) running = null;
  showRunning();
  if (!messages.includes(message)) return; // Another conversation was begun meanwhile.
  render();
  save();
  $("status").textContent = message.error ? "" : `Answer: ${message.content}`;
}

// --- Conversation ----------------------------------------------------------------------------

function render() {
  showTip(null);
  $("empty").hidden = messages.length > 0;
  $("log").replaceChildren(...messages.map((message) => {
    const name = message.role === "user" ? "You" : "Answer";
    const article = element("article", { className: message.role, "aria-label": name });
    paint(article, message);
    return article;
  }));
}

/** Show one message in its article. */
function paint(article, message) {
  const following = nearEnd();
  const body = element("div", { className: "body" });
  if (message.json && message.content) body.append(element("pre", {}, ...pieces(message, 0)));
  else fillBody(body, message);
  if (message.tokens?.length) Object.assign(body, { tabIndex: 0, tokens: message.tokens });
  article.replaceChildren(body);
  const line = foot(message);
  if (line.childNodes.length) article.append(line);
  if (message.error) article.append(errorCard(message.error, regenerate));
  if (following) scrollDown();
}

/** Text with fenced code set apart; everything else stays as the model wrote it. */
function fillBody(body, message) {
  const fence = /^```([^\n`]*)\n([^]*?)(?:^```[ \t]*(?:\n|$)|$(?![^]))/gm;
  let end = 0;
  for (const match of message.content.matchAll(fence)) {
    const start = match.index + match[0].indexOf("\n") + 1;
    // The block's own margins stand for the line ends around it.
    const before = message.content.slice(end, match.index).trimEnd().length;
    body.append(...pieces(message, end, end + before));
    const code = element("pre", {}, ...pieces(message, start, start + match[2].trimEnd().length));
    if (match[1].trim()) code.dataset.language = match[1].trim();
    body.append(code);
    end = match.index + match[0].length;
  }
  body.append(...pieces(message, end));
}

/** Return the nodes of `content[start:end]`: one span per token when their chances are known. */
function pieces(message, start, end = message.content.length) {
  const nodes = [];
  let at = 0;
  for (const [index, [text, probability]] of (message.tokens ?? []).entries()) {
    // Special tokens, and what a stop string took away, are not in the text.
    if (!text || !message.content.startsWith(text, at)) continue;
    const visible = message.content.slice(Math.max(at, start), Math.min(at + text.length, end));
    at += text.length;
    if (!visible || at <= start || at - text.length >= end) continue;
    const span = element("span", { className: "token" }, visible);
    span.dataset.sure = [0.9, 0.6, 0.3, 0.1].filter((bound) => probability < bound).length;
    span.dataset.index = index;
    nodes.push(span);
  }
  const plain = message.content.slice(Math.max(at, start), end);
  return plain ? [...nodes, plain] : nodes;
}

function foot(message) {
  const line = element("div", { className: "foot" });
  const actions = element("span", { className: "actions" });
  const action = (label, run) =>
    actions.append(element("button", { type: "button", className: "quiet", click: run }, label));
  const isLast = message === messages.at(-1);
  if (message.role === "user") {
    if (message === messages.findLast(({ role }) => role === "user") && !running) action("Edit", edit);
  } else {
    if (isLast && !running && !message.error) action("Regenerate", regenerate);
    if (message.content && navigator.clipboard && !(isLast && running))
      action("Copy", () => navigator.clipboard.writeText(message.content));
    const { rate, firstMs, usage, finish } = message;
    const whole = (number, digits = 0) =>
      number.toLocaleString("en", { maximumFractionDigits: digits });
    const add = (text, properties = {}) => line.append(element("span", properties, text));
    if (rate) add(`${whole(rate, rate < 10 ? 1 : 0)} tokens/s`, { title: "After the first chunk, if there are more" });
    if (firstMs) add(`first token ${whole(firstMs, firstMs < 10 ? 1 : 0)} ms`);
    if (usage) {
      const cached = usage.prompt_tokens_details?.cached_tokens;
      const prompt = `${whole(usage.prompt_tokens)} in${cached ? ` (${whole(cached)} cached)` : ""}`;
      add(`${prompt}, ${whole(usage.completion_tokens)} out`, { title: "Tokens" });
    if (finish) add(`ended by ${finish}`, { title: "finish_reason" });
    }
  }
  if (actions.childNodes.length) line.prepend(actions);
  return line;
}

function errorCard({ status, title, text }, retry) {
  const words = element("p", {}, element("strong", {}, title), text);
  const card = element("div", { className: "notice bad", role: "alert" }, words);
  if (status !== 401) {
    card.append(element("button", { type: "button", click: retry }, "Try again"));
    return card;
  }
  const key = element("input", { type: "password", autocomplete: "off", required: true,
    placeholder: "API key", "aria-label": "API key" });
  const submit = (event) => {
    event.preventDefault();
    useKey(key.value);
    loadModels();
    if (retry !== loadModels) retry();
  };
  card.append(element("form", { submit }, key, element("button", {}, "Use key")));
  return card;
}

function regenerate() {
  if (running) return;
  if (messages.at(-1)?.role === "assistant") messages.pop();
  if (messages.length) answer();
}

function edit() {
  const last = messages.findLast(({ role }) => role === "user");
  if (!last || running) return;
  setEditing(true);
  $("prompt").value = last.content;
  $("prompt").focus();
}

function setEditing(on) {
  editing = on;
  $("editing").hidden = !on;
}

function send(text) {
  if (running || !text.trim()) return;
  if (editing) messages.length = messages.findLastIndex(({ role }) => role === "user");
  setEditing(false);
  // Undoing now would drop what is asked here; a missing key is another matter.
  if (!$("notice").classList.contains("bad")) $("notice").hidden = true;
  messages.push({ role: "user", content: text.trim() });
  $("prompt").value = "";
  save();
  answer();
}

function begin() {
  const before = messages;
  running?.abort();
  running = null;
  messages = [];
  setEditing(false);
  render();
  showRunning();
  save();
  $("prompt").focus();
  if (!before.length) return;
  notify("Conversation cleared.", "Undo", () => {
    messages = before;
    render();
    save();
  });
}

function nearEnd() {
  const { scrollHeight, scrollTop, clientHeight } = $("scroll");
  return scrollHeight - scrollTop - clientHeight < 90;
}

function scrollDown() {
  $("scroll").scrollTop = $("scroll").scrollHeight;
}

function showRunning() {
  if (running) $("status").textContent = "Answering";
  const hadFocus = [$("send"), $("stop")].includes(document.activeElement);
  $("send").hidden = Boolean(running);
  $("stop").hidden = !running;
  if (hadFocus) $("prompt").focus();
}

// --- Notices, probabilities, settings --------------------------------------------------------

function notify(text, label, run) {
  const hide = () => ($("notice").hidden = true);
  const button = (name, act) => element("button", { type: "button", click: act }, name);
  const buttons = [button("Close", hide)];
  if (label) buttons.unshift(button(label, () => { hide(); run(); }));
  $("notice").className = "notice";
  $("notice").replaceChildren(element("p", {}, text), element("div", {}, ...buttons));
  $("notice").hidden = false;
}

function showTip(span) {
  document.querySelector(".token.current")?.classList.remove("current");
  $("tip").hidden = !span;
  if (!span) return;
  span.classList.add("current");
  const [, probability, others, name] = span.closest(".body").tokens[span.dataset.index];
  const isChosen = ([text]) => text === name;
  const list = others.some(isChosen) ? others : [...others, [name, probability]];
  $("tip").replaceChildren(...list.map((row) => {
    const [text, share] = row;
    const bar = element("span", { className: "bar" });
    bar.style.setProperty("--share", `${share * 100}%`);
    const shown = text.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥");
    const percent = share > 0 && share < 0.001 ? "< 0.1%" : `${(share * 100).toFixed(1)}%`;
    return element("div", { className: isChosen(row) ? "row chosen" : "row" },
      bar, element("code", {}, shown), element("span", {}, percent));
  }));
  const box = [...span.getClientRects()].at(-1); // Of a token on two lines, where its word is.
  const tip = $("tip").getBoundingClientRect();
  const top = box.top - tip.height - 8;
  $("tip").style.left = `${Math.max(8, Math.min(box.left, innerWidth - tip.width - 8))}px`;
  $("tip").style.top = `${top < 8 ? box.bottom + 8 : top}px`;
}

function moveTip(body, step) {
  const spans = [...body.querySelectorAll(".token")];
  const at = spans.indexOf(body.querySelector(".current"));
  showTip(spans[Math.max(0, Math.min(spans.length - 1, at < 0 ? 0 : at + step))]);
  $("status").textContent = document.querySelector("#tip .chosen").textContent;
}

function showSettings() {
  for (const field of $("fields").elements)
    if (field.name) field[field.type === "checkbox" ? "checked" : "value"] = settings[field.name];
  document.documentElement.dataset.theme = settings.theme;
  const title = `Theme: ${{ auto: "as the system", light: "light", dark: "dark" }[settings.theme]}`;
  Object.assign($("theme"), { title, ariaLabel: title });
  showSchema();
}

function showSchema() {
  $("schema-field").hidden = !settings.json;
  let problem = "";
  try {
    parseSchema(settings.schema);
  } catch (error) {
    problem = error.message;
  }
  $("schema-error").textContent = problem;
  $("schema-error").hidden = !problem;
}

function showPanel(open) {
  document.body.classList.toggle("no-settings", !open);
  $("toggle").setAttribute("aria-expanded", open);
  if (!narrow.matches) settings.panel = open;
  else if (open) $("fields").elements.system.focus();
  else $("toggle").focus();
  save();
}

/** On a narrow screen the settings cover the conversation, so they begin closed. */
function fitPanel() {
  document.body.classList.toggle("no-settings", narrow.matches || !settings.panel);
  $("toggle").setAttribute("aria-expanded", panelIsOpen());
}

const panelIsOpen = () => !document.body.classList.contains("no-settings");

async function loadModels() {
  try {
    const { data } = await (await call("v1/models")).json();
    $("model").replaceChildren(...data.map(({ id }) => new Option(id, id)));
    if (!data.some(({ id }) => id === settings.model)) settings.model = data[0].id;
    $("model").value = settings.model;
    $("notice").hidden = true;
  } catch (error) {
    const card = errorCard(wording(error), loadModels);
    $("notice").className = card.className;
    $("notice").replaceChildren(...card.childNodes);
    $("notice").hidden = false;
  }
}

function exportFile() {
  const text = JSON.stringify({ settings, messages }, null, 2);
  const href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  element("a", { href, download: "quire-conversation.json" }).click();
  setTimeout(() => URL.revokeObjectURL(href), 1000);
}

async function importFile(file) {
  const before = messages;
  try {
    adopt(JSON.parse(await file.text()));
    render();
  } catch (error) {
    messages = before;
    render();
    notify(`${file.name} is no conversation: ${error.message}`);
    return;
  }
  running?.abort();
  setEditing(false);
  showSettings();
  save();
}

// --- Start -----------------------------------------------------------------------------------

function listen() {
  const on = (id, name, run) => $(id).addEventListener(name, run);
  on("composer", "submit", (event) => { event.preventDefault(); send($("prompt").value); });
  on("prompt", "keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send($("prompt").value);
    } else if (event.key === "ArrowUp" && !$("prompt").value) {
      event.preventDefault(); // Else it would move the caret before the text.
      edit();
    }
  });
  for (const example of document.querySelectorAll(".examples button"))
    example.addEventListener("click", () => { $("prompt").focus(); send(example.textContent); });
  on("stop", "click", () => running?.abort());
  on("new", "click", begin);
  on("theme", "click", () => {
    settings.theme = { auto: "light", light: "dark", dark: "auto" }[settings.theme];
    showSettings();
    save();
  });
  on("toggle", "click", () => showPanel(!panelIsOpen()));
  on("close", "click", () => showPanel(false));
  on("model", "change", () => { settings.model = $("model").value; save(); });
  on("fields", "submit", (event) => event.preventDefault());
  on("fields", "input", ({ target }) => {
    if (!target.name) return;
    settings[target.name] = target.type === "checkbox" ? target.checked : target.value;
    showSchema();
    save();
  });
  on("export", "click", exportFile);
  on("import", "click", () => $("file").click());
  on("file", "change", () => { importFile($("file").files[0]); $("file").value = ""; });
  on("reset", "click", () => {
    const { model, theme, panel } = settings;
    settings = { ...DEFAULTS, model, theme, panel };
    showSettings();
    save();
  });
  on("log", "pointerover", ({ target }) => showTip(target.closest(".token")));
  on("log", "pointerleave", () => showTip(null));
  on("log", "focusout", () => showTip(null));
  on("log", "keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !event.target.tokens) return;
    event.preventDefault();
    moveTip(event.target, step);
  });
  addEventListener("pagehide", save);
  narrow.addEventListener("change", fitPanel);
  on("scroll", "scroll", () => showTip(null));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    showTip(null);
    if (running) running.abort();
    else if (editing) { setEditing(false); $("prompt").value = ""; }
    else if (narrow.matches && panelIsOpen()) showPanel(false);
  });
}

try {
  adopt(JSON.parse(localStorage.getItem(STORE) ?? '{"messages": []}'));
} catch (error) {
  notify(`The stored conversation cannot be read: ${error.message}`);
}
fitPanel();
showSettings();
render();
listen();
scrollDown();
// On a phone the keyboard would cover the page.
if (!narrow.matches) $("prompt").focus();
loadModels();
