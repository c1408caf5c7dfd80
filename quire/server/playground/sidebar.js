// The list of conversations: open, rename, delete.

import { loadConversation, loadConversations, removeConversation, saveConversation, watchConversations }
  from "./conversations.js";
import { $, element, iconButton, notify } from "./dom.js";

/** The list; `open` is called with a conversation's id, or null for a new one.
 *  `state()` tells {current, running}: an id and a set of ids. */
export class Sidebar {
  constructor(open, state) {
    Object.assign(this, { open, state });
    $("find").addEventListener("input", () => this.show());
    watchConversations(() => this.show());
  }

  show() {
    const { current, running } = this.state();
    const wanted = $("find").value.trim().toLowerCase();
    const has = ({ title, messages }) => !wanted || title.toLowerCase().includes(wanted)
      || messages.some(({ content }) => content.toLowerCase().includes(wanted));
    if ($("chat-list").querySelector("input")) return; // A title is being written.
    const all = loadConversations();
    const rows = all.filter(has).map((chat) => this.row(chat, chat.id === current, running.has(chat.id)));
    $("find").hidden = all.length < 5 && !wanted;
    const none = wanted ? "Nothing found." : "Conversations will be listed here; only this browser keeps them.";
    $("chat-list").replaceChildren(...(rows.length ? rows : [element("li", { className: "none" }, none)]));
  }

  row(chat, isCurrent, isRunning) {
    const title = chat.title || "Untitled";
    const link = element("button", { type: "button", className: "chat", title, click: () => this.open(chat.id) }, title);
    if (isCurrent) link.setAttribute("aria-current", "true");
    if (isRunning) link.append(element("span", { className: "dot", role: "img", "aria-label": "Answering" }));
    const row = element("li", {}, link,
      iconButton("pen", `Rename ${title}`, () => this.rename(row, chat.id, title)),
      iconButton("bin", `Delete ${title}`, () => this.remove(chat.id, title)));
    return row;
  }

  rename(row, id, title) {
    const field = element("input", { value: title, maxLength: 100, "aria-label": "Title" });
    const end = (keep) => {
      if (!field.isConnected) return;
      field.remove();
      if (keep && field.value.trim()) this.change(id, field.value.trim());
      this.show();
      $("chat-list").querySelector("[aria-current]")?.focus();
    };
    field.addEventListener("keydown", (event) => {
      if (!["Enter", "Escape"].includes(event.key) || event.isComposing) return;
      event.stopPropagation();
      event.preventDefault();
      end(event.key === "Enter");
    });
    field.addEventListener("blur", () => end(true));
    row.replaceChildren(field);
    field.select();
  }

  change(id, title) {
    const chat = this.state().loaded(id) ?? loadConversation(id);
    if (!chat) return;
    chat.title = title;
    saveConversation(chat);
  }

  remove(id, title) {
    const chat = this.state().loaded(id) ?? loadConversation(id);
    const wasCurrent = this.state().current === id;
    this.state().stop(id);
    removeConversation(id);
    if (wasCurrent) this.open(null);
    this.show();
    if (chat) notify(`“${title}” is deleted.`, ["Undo", () => {
      saveConversation(chat);
      if (wasCurrent) this.open(id);
      this.show();
    }]);
  }
}
