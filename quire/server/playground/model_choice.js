// The model that the chat asks: chosen in the header, remembered by each conversation.

import { wording } from "./api.js";
import { $ } from "./dom.js";
import { readAgain } from "./markdown.js";
import { errorCard } from "./message.js";
import { findModel, knownModels, readModels, stateText, watchModels } from "./models.js";
import { saveSettings, settings } from "./settings.js";

let retry = 0;
let loads = 0;
let shown = ""; // A name that may be none of this server's.

/** Show a model as chosen: a conversation's, or the one that was chosen last. */
export function showChosen(name) {
  if (!knownModels().length) {
    shown = name;
    return;
  }
  if (!name && !findModel(settings.model)) settings.model = knownModels()[0].id;
  shown = name || settings.model;
  fillChoice($("model"), shown);
  showState();
}

/** Put the models into a select and choose one; a name that is no model's stays, and says so. */
export function fillChoice(select, name) {
  const ids = knownModels().map(({ id }) => id);
  const id = findModel(name)?.id ?? name;
  const options = ids.map((each) => [each, each]);
  if (!ids.includes(id)) options.push([id, `${id} (not on this server)`]);
  const filled = [...select.options].map(({ value, text }) => `${value}\n${text}`).join("\n");
  const wanted = options.map(([value, text]) => `${value}\n${text}`).join("\n");
  if (filled !== wanted) select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
  select.value = id;
}

function showState() {
  const model = findModel($("model").value);
  const text = !model || model.state === "ready" ? "" : stateText(model);
  if ($("model-state").textContent !== text) $("model-state").textContent = text;
  $("model-state").dataset.state = model?.state ?? "";
  $("attach").hidden = !model?.seesPictures;
}

/** Read the models; where that fails, say why, and try again when the server names a time. */
export async function loadModels() {
  const load = ++loads;
  clearTimeout(retry);
  try {
    await readModels();
    if ($("notice").classList.contains("bad")) $("notice").hidden = true;
    readAgain();
  } catch (error) {
    if (load !== loads) return; // A later one says how it is: a field being filled stays.
    const words = wording(error);
    const card = errorCard(words, loadModels);
    $("notice").className = card.className;
    $("notice").replaceChildren(...card.childNodes);
    $("notice").hidden = false;
    // A server that is still starting says when it will be ready.
    if (words.retryAt) retry = setTimeout(loadModels, Math.max(1000, words.retryAt - Date.now()));
  }
}

/** Begin; `changed(id)` is called when people choose another model. */
export function startModelChoice(changed) {
  watchModels(() => showChosen(shown));
  $("model").addEventListener("change", () => {
    shown = settings.model = $("model").value;
    saveSettings();
    showState();
    changed(shown);
  });
}
