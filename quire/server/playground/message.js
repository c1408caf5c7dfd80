// One message as it is shown: reasoning, text, figures, what can be done with it, and its error.

import { useKey } from "./api.js";
import { copyButton, element, iconButton } from "./dom.js";
import { MarkdownView } from "./markdown.js";
import { knownModels } from "./models.js";
import { pictureList } from "./pictures.js";
import { tokenSpans } from "./probabilities.js";

const ENDINGS = {
  stop: "The model finished.",
  length: "cut off at the token limit",
  abort: "ended by the server",
  you: "ended by you",
};

/** The article of a message.
 *
 *  `chat` is what a message may ask for: versions(message), showVersion(message), edit(message,
 *  text), repeat(message), goOn(message), retry(message). */
export class MessageView {
  constructor(message, chat) {
    Object.assign(this, { message, chat });
    const name = message.role === "user" ? "You" : "Answer";
    this.article = element("article", { className: message.role, "aria-label": name });
    this.body = element("div", { className: "body" });
    this.text = new MarkdownView(this.body);
    if (message.pictures?.length) this.article.append(pictureList(message.pictures));
    this.article.append(this.body);
    this.update(false, false);
  }

  /** Show what the message holds now; `running` says that it is being written, `busy` that one is. */
  update(running, busy) {
    if (this.editor) return;
    const { message, article } = this;
    article.classList.toggle("waiting", running);
    this.showReasoning(running);
    this.showBody(running);
    if (running && this.wasRunning) return this.foot.replaceChildren(...figures(message));
    this.wasRunning = running;
    this.foot?.remove();
    this.error?.remove();
    this.foot = running ? element("div", { className: "foot" }) : this.createFoot(busy);
    article.append(this.foot);
    this.error = message.error && !running ? errorCard(message.error, () => this.chat.retry(message)) : null;
    if (this.error) article.append(this.error);
  }

  showBody(running) {
    const { message, body } = this;
    const { content, tokens, json } = message;
    body.hidden = !content && (!running || Boolean(message.reasoning));
    if (tokens?.length && content) {
      Object.assign(body, { tabIndex: 0, tokens });
      body.classList.add("plain");
      body.replaceChildren(...tokenSpans(message));
    } else if (message.role === "user") {
      body.classList.add("plain");
      body.textContent = content;
    } else this.text.show(json && content ? "```json\n" + content + "\n```" : content, running);
  }

  showReasoning(running) {
    const { message } = this;
    if (!message.reasoning) return;
    if (!this.reasoning) {
      const summary = element("summary", {}, element("span"), element("small"));
      const text = element("div", { className: "thought" });
      this.reasoning = element("details", { className: "reasoning", toggle: () => this.fillReasoning() }, summary, text);
      this.thought = new MarkdownView(text);
      this.article.prepend(this.reasoning);
    }
    const thinking = running && !message.content;
    const seconds = (message.reasoningMs ?? 0) / 1000;
    const duration = seconds >= 1 ? ` for ${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s` : "";
    const [label, last] = this.reasoning.querySelectorAll("summary > *");
    label.textContent = thinking ? "Thinking" : `Thought${duration}`;
    label.classList.toggle("shimmer", thinking);
    last.textContent = thinking ? message.reasoning.slice(-120).trim().split("\n").at(-1) : "";
    this.thinking = thinking;
    this.fillReasoning();
  }

  fillReasoning() {
    if (this.reasoning.open) this.thought.show(this.message.reasoning, this.thinking);
  }

  createFoot(busy) {
    const { message, chat } = this;
    const line = element("div", { className: "foot" });
    const actions = element("span", { className: "actions" });
    const action = (label, click, title = "") =>
      actions.append(element("button", { type: "button", className: "quiet", title, click }, label));
    if (!busy) this.addVersions(actions);
    if (message.role === "assistant") {
      if (!busy && canGoOn(message)) action("Continue", () => chat.goOn(message), "Go on from here");
      if (!busy && !message.error) action("Regenerate", () => chat.repeat(message));
      if (message.content) actions.append(copyButton(() => message.content));
    }
    if (!busy && (message.content || message.role === "user")) action("Edit", () => this.edit());
    if (actions.childNodes.length) line.append(actions);
    if (message.role === "assistant") line.append(...figures(message));
    return line;
  }

  addVersions(actions) {
    const all = this.chat.versions(this.message);
    if (all.length < 2) return;
    const at = all.indexOf(this.message);
    const go = (icon, label, other) => {
      const button = iconButton(icon, label, () => this.chat.showVersion(other));
      button.disabled = !other;
      return button;
    };
    actions.append(element("span", { className: "versions" }, go("back", "Version before", all[at - 1]),
      `${at + 1}/${all.length}`, go("on", "Next version", all[at + 1])));
  }

  /** Put a field in place of the text, with another one to begin with. */
  edit(text = this.message.content) {
    if (this.editor) return;
    const { message, chat, article } = this;
    const isQuestion = message.role === "user";
    const field = element("textarea", { value: text, rows: 2, "aria-label": "Edit message" });
    const end = (save) => {
      this.editor.remove();
      this.editor = null;
      article.classList.remove("editing");
      if (save && field.value.trim()) chat.edit(message, field.value.trim());
      else article.querySelector(".foot button:last-of-type")?.focus();
    };
    const keydown = (event) => {
      const enters = event.key === "Enter" && !event.isComposing
        && (isQuestion ? !event.shiftKey : event.ctrlKey || event.metaKey);
      if (!enters && event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      end(enters);
    };
    field.addEventListener("keydown", keydown);
    const button = (label, className, save) =>
      element("button", { type: "button", className, click: () => end(save) }, label);
    this.editor = element("div", { className: "editor" }, field, element("div", {},
      button("Cancel", "quiet", false), button(isQuestion ? "Send" : "Save", "main", true)));
    article.classList.add("editing");
    article.append(this.editor);
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }
}

/** Say whether the model may go on with an answer; a schema would have it begin anew. */
function canGoOn({ content, finish, edited, error, json }) {
  return Boolean(content) && !json && !error && (finish !== "stop" || edited);
}

function figures({ model, rate, firstMs, usage, steps, finish, edited }) {
  const spans = [];
  const whole = (number, digits = 0) => number.toLocaleString("en", { maximumFractionDigits: digits });
  const add = (text, title = "", className = "") => spans.push(element("span", { title, className }, text));
  if (model && knownModels().length > 1) add(model, "Model", "of");
  if (rate) add(`${whole(rate, rate < 10 ? 1 : 0)} tokens/s`, "After the first chunk, if there are more");
  const { accepted_prediction_tokens: held = 0, rejected_prediction_tokens: lost = 0 } =
    usage?.completion_tokens_details ?? {};
  if (steps && held + lost)
    add(`${whole(usage.completion_tokens / steps, 1)} tokens/step`,
      `${whole(held)} of ${whole(held + lost)} tokens proposed ahead were accepted`);
  if (firstMs) add(`first token ${whole(firstMs, firstMs < 10 ? 1 : 0)} ms`);
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens;
    const prompt = `${whole(usage.prompt_tokens)} in${cached ? ` (${whole(cached)} cached)` : ""}`;
    add(`${prompt}, ${whole(usage.completion_tokens)} out`, "Tokens");
  }
  if (finish) add(ENDINGS[finish] ?? `ended by ${finish}`, "finish_reason", finish === "length" ? "warn" : "");
  if (edited) add("edited");
  return spans;
}

/** Return a card for an error, with what can be done: a key, or another try when the server says. */
export function errorCard({ status, title, text, retryAt }, retry) {
  const words = element("p", {}, element("strong", {}, title), text);
  const card = element("div", { className: "notice bad", role: "alert" }, words);
  if (status !== 401 && status !== 403) {
    card.append(retryButton(retryAt, retry));
    return card;
  }
  const key = element("input", { type: "password", autocomplete: "off", required: true,
    placeholder: "API key", "aria-label": "API key" });
  const submit = (event) => {
    event.preventDefault();
    useKey(key.value);
    dispatchEvent(new Event("keychange"));
    retry();
  };
  card.append(element("form", { submit }, key, element("button", {}, "Use key")));
  return card;
}

/** Return a button that counts down to the time that the server named. */
function retryButton(retryAt, retry) {
  const button = element("button", { type: "button", click: retry }, "Try again");
  const tick = () => {
    const seconds = Math.ceil((retryAt - Date.now()) / 1000);
    button.disabled = seconds > 0;
    button.textContent = seconds > 0 ? `Try again in ${seconds} s` : "Try again";
    if (seconds > 0) setTimeout(() => (button.isConnected || !started) && tick(), 250);
    started = true;
  };
  let started = false;
  if (retryAt) tick();
  return button;
}
