// What is sent with every question, how the page looks, and the panel that shows both.

import { parseSchema } from "./api.js";
import { $, narrow } from "./dom.js";

const STORE = "quire.settings";
const DEFAULTS = {
  model: "", system: "", temperature: "", top_p: "", repetition_penalty: "", max_tokens: "", seed: "", stop: "",
  left: "", right: "", logprobs: false, json: false, theme: "auto", panel: false, chats: true,
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

export const settings = { ...DEFAULTS };

/** Take over settings from storage or a file; what is missing or of another type is the default. */
export function adoptSettings(data) {
  for (const [name, value] of Object.entries(DEFAULTS))
    settings[name] = typeof data?.[name] === typeof value ? data[name] : value;
}

export function saveSettings() {
  try {
    localStorage.setItem(STORE, JSON.stringify(settings));
  } catch {
    // They hold until the page is closed.
  }
}

export function showSettings() {
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

// Two panels: the conversations on the left, the settings on the right. On a narrow screen they
// cover the page, so they begin closed there.
const PANELS = {
  chats: { button: "chats-toggle", closed: "no-chats", first: () => $("new") },
  settings: { button: "toggle", closed: "no-settings", first: () => $("fields").elements.system },
};

export const panelIsOpen = (name) => !document.body.classList.contains(PANELS[name].closed);

export function showPanel(name, open) {
  const { button, closed, first } = PANELS[name];
  document.body.classList.toggle(closed, !open);
  $(button).setAttribute("aria-expanded", open);
  if (!narrow.matches) settings[name === "settings" ? "panel" : "chats"] = open;
  else (open ? first() : $(button)).focus();
  saveSettings();
}

function fitPanels() {
  for (const [name, kept] of [["chats", settings.chats], ["settings", settings.panel]]) {
    const open = kept && !narrow.matches;
    document.body.classList.toggle(PANELS[name].closed, !open);
    $(PANELS[name].button).setAttribute("aria-expanded", open);
  }
}

export function startSettings() {
  try {
    adoptSettings(JSON.parse(localStorage.getItem(STORE)));
  } catch {
    // Another program's, or damaged: the defaults hold.
  }
  fitPanels();
  showSettings();
  narrow.addEventListener("change", fitPanels);
  const on = (id, name, run) => $(id).addEventListener(name, run);
  on("theme", "click", () => {
    settings.theme = { auto: "light", light: "dark", dark: "auto" }[settings.theme];
    showSettings();
    saveSettings();
  });
  on("toggle", "click", () => showPanel("settings", !panelIsOpen("settings")));
  on("close", "click", () => showPanel("settings", false));
  on("chats-toggle", "click", () => showPanel("chats", !panelIsOpen("chats")));
  on("chats-close", "click", () => showPanel("chats", false));
  on("fields", "submit", (event) => event.preventDefault());
  on("fields", "input", ({ target }) => {
    if (!target.name) return;
    settings[target.name] = target.type === "checkbox" ? target.checked : target.value;
    showSchema();
    saveSettings();
  });
  on("reset", "click", () => {
    const { model, left, right, theme, panel, chats } = settings;
    adoptSettings({ model, left, right, theme, panel, chats });
    showSettings();
    saveSettings();
  });
}
