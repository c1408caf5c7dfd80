// Two models side by side on the same prompt: both answer at once, with the chat's settings.

import { requestBody } from "./api.js";
import { ask, emptyAnswer, limitOf } from "./asking.js";
import { $, element } from "./dom.js";
import { MessageView } from "./message.js";
import { fillChoice } from "./model_choice.js";
import { findModel, knownModels, lookSoon, stateText, watchModels } from "./models.js";
import { showTip } from "./probabilities.js";
import { saveSettings, settings } from "./settings.js";
import { currentView } from "./views.js";

const SIDES = ["left", "right"];
const answers = new Map(); // By side: {model, message, view, controller}; of the last prompt.
let prompt = "";

const isRunning = () => [...answers.values()].some(({ controller }) => controller);

/** One side's answer; `side` says which of the two models writes it. */
async function answer(side, model) {
  const json = settings.json;
  const question = {};
  try {
    question.body = requestBody({ ...settings, model }, [{ role: "user", content: prompt }], false);
    question.limit = limitOf(settings, model);
  } catch (error) {
    question.error = error;
  }
  const message = { role: "assistant", model, ...emptyAnswer(json), error: null, finish: null };
  const view = new MessageView(message, { versions: () => [], retry: () => answer(side, model) });
  const controller = new AbortController();
  answers.set(side, { model, message, view, controller });
  $(`${side}-answer`).replaceChildren(heading(side), view.article);
  view.update(true, true);
  showRunning();
  if (findModel(model)?.state !== "ready") lookSoon();
  let frame = 0;
  const paint = () => {
    frame = 0;
    const area = $("compare-scroll");
    const following = area.scrollHeight - area.scrollTop - area.clientHeight < 90;
    view.update(true, true);
    showStates();
    if (following) area.scrollTop = area.scrollHeight;
  };
  await ask(question, message, controller, () => (frame ||= requestAnimationFrame(paint)));
  cancelAnimationFrame(frame);
  answers.get(side).controller = null;
  view.update(false, true);
  lookSoon();
  showRunning();
}

function heading(side) {
  const { model } = answers.get(side);
  return element("h3", { id: `${side}-name` }, element("bdi", {}, model), element("small", { className: "state" }));
}

/** Say of a model that is not ready yet where it stands, so that its silence is understood. */
function showStates() {
  for (const [side, { model, message, controller }] of answers) {
    const waits = controller && !message.usage;
    const known = waits ? findModel(model) : null;
    const place = $(`${side}-name`)?.querySelector("small");
    if (!place) continue;
    place.textContent = !known || known.state === "ready" ? "" : stateText(known);
    place.dataset.state = known?.state ?? "";
  }
}

function compare(text) {
  prompt = text;
  showTip(null);
  $("compare-empty").hidden = true;
  $("compare-prompt").hidden = $("columns").hidden = false;
  $("compare-prompt").textContent = prompt;
  $("status").textContent = "Both models are answering";
  for (const side of SIDES) answer(side, $(`compare-${side}`).value);
}

function stop() {
  for (const { controller } of answers.values()) controller?.abort();
}

function showRunning() {
  const running = isRunning();
  const hadFocus = [$("compare-send"), $("compare-stop")].includes(document.activeElement);
  $("compare-send").hidden = running;
  $("compare-stop").hidden = !running;
  if (hadFocus) $("compare-text").focus();
  showStates();
  if (!running && answers.size) $("status").textContent = "Both answers have ended";
}

/** Fill both choices: what was compared last, else the chat's model and another one. */
function showChoices() {
  const ids = knownModels().map(({ id }) => id);
  const first = findModel(settings.left)?.id ?? findModel(settings.model)?.id ?? ids[0];
  const other = findModel(settings.right)?.id ?? ids.find((id) => id !== first) ?? first;
  if (!first) return;
  fillChoice($("compare-left"), first);
  fillChoice($("compare-right"), other);
  $("compare-alone").hidden = ids.length > 1;
  showStates();
}

export function startCompare() {
  watchModels(showChoices);
  for (const side of SIDES)
    $(`compare-${side}`).addEventListener("change", ({ target }) => {
      settings[side] = target.value;
      saveSettings();
    });
  $("compare-stop").addEventListener("click", stop);
  $("compare-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = $("compare-text").value.trim();
    if (!text || isRunning()) return;
    $("compare-text").value = "";
    compare(text);
  });
  $("compare-text").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    $("compare-form").requestSubmit();
  });
  document.addEventListener("keydown", ({ key }) => {
    if (key === "Escape" && currentView() === "compare") stop();
  });
}
