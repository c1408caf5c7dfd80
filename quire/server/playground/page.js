// The chat page: which conversation is shown, who is answering, and what people do.

import { requestBody } from "./api.js";
import { ask, emptyAnswer, limitOf } from "./asking.js";
import { startCompare } from "./compare.js";
import { addMessage, createConversation, exclusively, isFollowed, loadConversation, openAnswer,
  readConversation, saveConversation, showVersion, shownMessages, versions, watchConversations }
  from "./conversations.js";
import { $, element, narrow, nearEnd, notify, scrollDown } from "./dom.js";
import { MessageView } from "./message.js";
import { loadModels, showChosen, startModelChoice } from "./model_choice.js";
import { findModel, lookSoon } from "./models.js";
import { lookAtModels, startModelsView } from "./models_view.js";
import { setPictures, startPictures, takePictures } from "./pictures.js";
import { listenToTokens, showTip } from "./probabilities.js";
import { adoptSettings, panelIsOpen, saveSettings, settings, showPanel, showSettings, startSettings }
  from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { currentView, showView, startViews, watchView } from "./views.js";

const CURRENT = "quire.current"; // Of the tab: two tabs may show two conversations.
const SAVE_MS = 1000;
const REMOVED = "removed"; // Why an answer was ended whose conversation is gone.

let chat = createConversation();
let views = new Map(); // Of the messages that are shown.
const running = new Map(); // By conversation: {chat, message, controller}.

const sidebar = new Sidebar((id) => { showView("chat"); openConversation(id); }, () => ({
  current: chat.id,
  running: new Set(running.keys()),
  loaded: (id) => (id === chat.id ? chat : running.get(id)?.chat),
  stop: (id) => running.get(id)?.controller.abort(REMOVED),
}));

// --- Conversations ---------------------------------------------------------------------------

function save(changed = chat) {
  if (!changed.messages.length) return;
  changed.updated = Date.now();
  if (!saveConversation(changed))
    notify("The browser has no room to keep this conversation. Export it, or delete others.");
  sidebar.show();
}

/** Show a conversation, or a new one; an answer that is being written goes on being written. */
function openConversation(id) {
  chat = (id && (running.get(id)?.chat ?? loadConversation(id))) || createConversation();
  sessionStorage.setItem(CURRENT, chat.id);
  if (!$("notice").classList.contains("bad")) $("notice").hidden = true;
  showChosen(chat.model);
  render();
  scrollDown();
  if (narrow.matches && panelIsOpen("chats")) showPanel("chats", false);
  else if (!narrow.matches && currentView() === "chat") $("prompt").focus();
}

/** What a message may ask for. */
const actions = {
  versions: (message) => versions(chat, message),
  showVersion: (message) => change(message, (found) => {
    showVersion(chat, found);
    render();
    save();
  }),
  async edit(message, content) {
    const at = chat.messages.indexOf(message);
    const done = await change(message, (found) => {
      chat.leaf = found.parent;
      if (found.role === "user") return say(content, found.pictures);
      addMessage(chat, { role: "assistant", content, edited: true });
      render();
      save();
    });
    if (!done) views.get(chat.messages[at])?.edit(content);
  },
  repeat: (message) => change(message, (found) => {
    chat.leaf = found.parent;
    return answer();
  }),
  goOn: (message) => change(message, answer),
  /** Go on from what came, if something did. */
  retry: (message) => change(message, (found) => {
    if (found.content && !found.json) return answer(found);
    chat.leaf = found.parent;
    return answer(null, isFollowed(chat, found) ? null : found);
  }),
};

const isRunning = () => running.has(chat.id);

/** Await `run`, which changes the conversation that is shown; it gets `message` as it is kept by
 *  now. Nothing happens while an answer is being written here or, which is said, in another tab.
 *  Return whether it ran. */
async function change(message, run) {
  if (isRunning() || $("composer").ariaBusy) return false;
  const asked = chat;
  $("composer").ariaBusy = "true";
  const done = await exclusively(asked.id, () => {
    $("composer").ariaBusy = null;
    const at = asked.messages.indexOf(message);
    const kept = loadConversation(asked.id);
    chat = kept?.updated > asked.updated ? kept : asked; // Another tab may have been here last.
    return run(chat.messages[at]);
  });
  if (done) return true;
  $("composer").ariaBusy = null;
  notify("Another tab is answering in this conversation. Wait for its answer, or stop it there.");
  return false;
}

function say(text, pictures = []) {
  // A missing key is another matter.
  if (!$("notice").classList.contains("bad")) $("notice").hidden = true;
  addMessage(chat, { role: "user", content: text.trim(), pictures });
  sessionStorage.setItem(CURRENT, chat.id);
  save();
  return answer();
}

/** Ask for an answer to the last message and show it as it comes.
 *
 *  With `partial` the model goes on with that answer; `failed` is one that the new one replaces. */
async function answer(partial = null, failed = null) {
  const asked = chat;
  if (partial) partial = openAnswer(asked, partial);
  const json = settings.json && !partial;
  const model = asked.model || settings.model;
  const request = {};
  try {
    request.body = requestBody({ ...settings, model, json }, shownMessages(asked), Boolean(partial));
    request.limit = limitOf(settings, model);
  } catch (error) {
    request.error = error;
  }
  const fresh = emptyAnswer(json);
  const message = partial ?? failed ?? addMessage(asked, { role: "assistant", ...fresh });
  if (partial) coverWithTokens(partial);
  if (failed) {
    Object.assign(failed, fresh);
    asked.leaf = asked.messages.indexOf(failed);
  }
  Object.assign(message, { error: null, finish: null, model });
  asked.model = model;
  if (findModel(model)?.state !== "ready") lookSoon();
  const controller = new AbortController();
  running.set(asked.id, { chat: asked, message, controller });
  views.delete(message);
  render();
  scrollDown();
  await stream(request, asked, message, controller);
  running.delete(asked.id);
  if (controller.signal.reason !== REMOVED) save(asked);
  if (chat !== asked) return;
  showRunning();
  const following = nearEnd();
  for (const view of views.values()) view.update(false, false);
  if (following) scrollDown();
  $("status").textContent = message.error ? "" : `Answer: ${message.content}`;
}

/** What an answer holds already is one token, where its tokens are not known. */
function coverWithTokens(message) {
  const known = (message.tokens ?? []).map(([text]) => text).join("");
  if (known !== message.content) message.tokens = settings.logprobs ? [[message.content, 1, [], message.content]] : [];
}

/** Send a request and add to `message` what comes; its errors and its end are kept in it. */
async function stream(request, asked, message, controller) {
  let frame = 0;
  let saved = Date.now();
  const paint = () => {
    frame = 0;
    if (chat !== asked) return;
    const following = nearEnd();
    views.get(message)?.update(true, true);
    if (following) scrollDown();
  };
  await ask(request, message, controller, () => {
    frame ||= requestAnimationFrame(paint);
    if (Date.now() - saved <= SAVE_MS) return;
    asked.updated = saved = Date.now();
    saveConversation(asked);
  });
  cancelAnimationFrame(frame);
}

// --- What is shown ---------------------------------------------------------------------------

function render() {
  showTip(null);
  const messages = shownMessages(chat);
  $("empty").hidden = messages.length > 0;
  const answering = running.get(chat.id)?.message;
  const before = views;
  views = new Map(messages.map((message) => [message, before.get(message) ?? new MessageView(message, actions)]));
  $("log").replaceChildren(...[...views.values()].map(({ article }) => article));
  for (const [message, view] of views) view.update(message === answering, Boolean(answering));
  showRunning();
  if (currentView() === "chat") document.title = chat.title ? `${chat.title} – Quire` : "Quire";
  sidebar.show();
}

function showRunning() {
  if (isRunning()) $("status").textContent = "Answering";
  const hadFocus = [$("send"), $("stop")].includes(document.activeElement);
  $("send").hidden = isRunning();
  $("stop").hidden = !isRunning();
  if (hadFocus) $("prompt").focus();
}

// --- Files -----------------------------------------------------------------------------------

function exportFile() {
  const text = JSON.stringify({ ...chat, settings }, null, 2);
  const href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  element("a", { href, download: "quire-conversation.json" }).click();
  setTimeout(() => URL.revokeObjectURL(href), 1000);
}

/** Add a file's conversation to the list and open it. */
async function importFile(file) {
  try {
    const data = JSON.parse(await file.text());
    const read = readConversation({ ...data, id: null });
    if (data.settings) adoptSettings({ ...data.settings, model: settings.model });
    chat = read;
    if (!findModel(chat.model)) chat.model = ""; // Another server's.
  } catch (error) {
    notify(`${file.name} is no conversation: ${error.message}`);
    return;
  }
  sessionStorage.setItem(CURRENT, chat.id);
  showSettings();
  saveSettings();
  save();
  render();
}

// --- Start -----------------------------------------------------------------------------------

function editLast() {
  const last = shownMessages(chat).findLast(({ role }) => role === "user");
  if (last && !isRunning()) views.get(last).edit();
}

async function submit() {
  if (isRunning()) return;
  const pictures = await takePictures();
  const text = $("prompt").value;
  if (!text.trim() && !pictures.length) return;
  $("prompt").value = "";
  const done = (!pictures.length || acceptPictures()) && (await change(null, () => say(text, pictures)));
  if (done) return;
  $("prompt").value ||= text;
  setPictures(pictures);
}

/** Return whether the model takes pictures; where it does not, say so. */
function acceptPictures() {
  showView("chat");
  const model = findModel(chat.model || settings.model);
  if (!model || model.seesPictures) return true; // What is not known yet the server decides.
  notify(`${model.id} takes text only. Choose a model that takes pictures.`);
  return false;
}

function listen() {
  const on = (id, name, run) => $(id).addEventListener(name, run);
  on("composer", "submit", (event) => { event.preventDefault(); submit(); });
  on("prompt", "keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    } else if (event.key === "ArrowUp" && !$("prompt").value) {
      event.preventDefault(); // Else it would move the caret before the text.
      editLast();
    }
  });
  for (const example of document.querySelectorAll(".examples button"))
    example.addEventListener("click", () => { $("prompt").focus(); change(null, () => say(example.textContent)); });
  on("stop", "click", () => running.get(chat.id)?.controller.abort());
  on("new", "click", () => { showView("chat"); openConversation(null); });
  on("export", "click", exportFile);
  on("import", "click", () => $("file").click());
  on("file", "change", () => { importFile($("file").files[0]); $("file").value = ""; });
  on("log", "grown", () => nearEnd() && isRunning() && scrollDown());
  addEventListener("keychange", loadModels);
  addEventListener("pagehide", () => { for (const each of running.values()) save(each.chat); });
  watchConversations((id) => {
    // Another tab writes in the conversation that is shown here.
    if (id !== chat.id || isRunning() || document.querySelector(".editing")) return;
    const changed = loadConversation(id);
    if (!changed) return;
    const following = nearEnd();
    chat = changed;
    render();
    if (following) scrollDown();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "O" && event.ctrlKey && event.shiftKey) {
      event.preventDefault();
      showView("chat");
      openConversation(null);
    }
    if (event.key !== "Escape") return;
    showTip(null);
    if (isRunning() && currentView() === "chat") running.get(chat.id).controller.abort();
    else if (narrow.matches)
      for (const name of ["settings", "chats"]) if (panelIsOpen(name)) showPanel(name, false);
  });
}

/** Ask another model from here on; a conversation remembers it. */
function chooseModel(id) {
  chat.model = id;
  // An answer that is being written here is kept with it.
  if (!isRunning() && chat.messages.length) change(null, () => { chat.model = id; save(); });
}

startSettings();
listen();
listenToTokens();
startPictures(acceptPictures);
startModelChoice(chooseModel);
startCompare();
startModelsView((id) => {
  settings.model = id;
  saveSettings();
  chooseModel(id);
  showView("chat");
  showChosen(id);
  $("prompt").focus();
});
watchView((name) => {
  showTip(null);
  lookAtModels(name === "models");
  if (name === "chat") render();
  if (narrow.matches && panelIsOpen("chats")) showPanel("chats", false);
});
startViews();
openConversation(sessionStorage.getItem(CURRENT));
loadModels();
