// What the page shows: the chat, a comparison, or the models. The address says which, so that the
// browser's way back leads there.

import { $ } from "./dom.js";

const VIEWS = { chat: "Quire", compare: "Compare – Quire", models: "Models – Quire" };
const watchers = [];

export const currentView = () => document.body.dataset.view;

/** Call `run` with the name of each view that is shown, the first one included. */
export function watchView(run) {
  watchers.push(run);
}

export function showView(name) {
  if (name !== currentView()) location.hash = name;
  show(name);
}

function show(name) {
  const before = currentView();
  if (name === before) return;
  document.body.dataset.view = name;
  for (const view of Object.keys(VIEWS)) {
    $(`${view}-view`).hidden = view !== name;
    const link = document.querySelector(`#chats a[href="#${view}"]`);
    if (view === name) link?.setAttribute("aria-current", "page");
    else link?.removeAttribute("aria-current");
  }
  if (name !== "chat") document.title = VIEWS[name];
  for (const run of watchers) run(name);
  if (before && name !== "chat") $(`${name}-view`).querySelector("h2").focus();
}

const named = () => (Object.hasOwn(VIEWS, location.hash.slice(1)) ? location.hash.slice(1) : "chat");

export function startViews() {
  addEventListener("hashchange", () => show(named()));
  show(named());
}
