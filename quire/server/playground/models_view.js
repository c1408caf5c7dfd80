// The view of all models: rows that say where each stands, what can be done with it, and pulls.

import { wording } from "./api.js";
import { $, element } from "./dom.js";
import { errorCard } from "./message.js";
import { loadModels } from "./model_choice.js";
import { changeModel, findModel, followModels, idOf, listedModels, listFailure, readModels, sizeText, speedOf,
  stateText, watchModels } from "./models.js";
import { Pull } from "./pulling.js";

const rows = new Map(); // By id; they stay the same elements, so that nothing loses its focus.
const pulls = new Map(); // By name: [Pull, PullRow].
let shownFailure = null;
let choose = () => {};

/** Begin; `chosen(id)` is called when people want to talk to a model. */
export function startModelsView(chosen) {
  choose = chosen;
  watchModels(showRows);
  $("pull").addEventListener("submit", (event) => {
    event.preventDefault();
    const name = $("pull-name").value.trim();
    if (!name) return;
    $("pull").reset(); // An empty value of the person’s own making would be marked as wrong.
    startPull(name);
  });
}

/** The view is shown, or no longer. */
export function lookAtModels(look) {
  followModels(look);
}

function showRows() {
  const failure = listFailure();
  if (failure !== shownFailure) {
    $("list-failure").replaceChildren(...(failure ? [errorCard(failure, loadModels)] : []));
    shownFailure = failure;
  }
  for (const { id, state, goesOn } of listedModels()) if (state === "downloading" && goesOn && !hasRow(id)) startPull(id, "models/pull/watch");
  // Pulls that go on have a row already.
  const models = listedModels().filter(({ id, state }) => state !== "downloading" || !isPulledHere(id));
  const ids = new Set(models.map(({ id }) => id));
  for (const [id, row] of rows) {
    if (ids.has(id)) continue;
    row.item.remove();
    rows.delete(id);
  }
  for (const model of models) {
    if (!rows.has(model.id)) rows.set(model.id, new ModelRow(model.id));
    const { item } = rows.get(model.id);
    if (!item.isConnected) $("model-list").append(item);
    rows.get(model.id).update(model);
  }
}

function isPulledHere(id) {
  return [...pulls.values()].some(([{ name, state }]) => state === "running" && name.toLowerCase() === id.toLowerCase());
}

const hasRow = (id) => [...pulls.keys()].some((name) => name.toLowerCase() === id.toLowerCase());

class ModelRow {
  constructor(id) {
    this.id = id;
    this.state = element("span", { className: "state" });
    this.figures = element("p", { className: "figures" });
    this.bar = element("progress", { "aria-label": `Loading ${id}`, max: 1 });
    this.problem = element("p", { className: "error-text" });
    this.failure = element("div", { className: "failure" });
    this.use = element("button", { type: "button", "aria-label": `Use ${id}`, click: () => choose(id) }, "Use");
    this.change = element("button", { type: "button", click: () => this.act(this.action) });
    this.item = element("li", { className: "model" },
      element("div", { className: "what" },
        element("p", { className: "name" }, element("strong", {}, element("bdi", {}, id)), this.state), this.figures, this.problem),
      element("div", { className: "do" }, this.use, this.change), this.bar, this.failure);
  }

  update(model) {
    const { state, part, error } = model;
    this.state.textContent = stateText(model);
    this.state.dataset.state = state;
    this.figures.textContent = figures(model).join(" · ");
    this.bar.hidden = !["downloading", "loading"].includes(state);
    this.use.hidden = this.change.hidden = state === "downloading";
    if (part === null) this.bar.removeAttribute("value");
    else this.bar.value = part;
    this.problem.textContent = error;
    this.problem.hidden = !error;
    this.action = state === "ready" ? "unload" : "load";
    const label = { load: "Load", unload: "Unload" }[this.action];
    this.change.textContent = label;
    this.change.ariaLabel = `${label} ${this.id}`;
    const moves = ["loading", "draining", "unloading"].includes(state);
    this.change.disabled = this.acting || moves;
  }

  async act(action) {
    this.acting = this.change.disabled = true;
    this.failure.replaceChildren();
    try {
      await changeModel(action, this.id);
      $("status").textContent = `${this.id}: ${action} is under way`;
    } catch (error) {
      this.failure.replaceChildren(errorCard(wording(error), () => this.act(action)));
    }
    this.acting = false;
    const model = findModel(this.id);
    if (model) this.update(model);
  }
}

function figures(model) {
  const { bytes, context, requests, aliases } = model;
  const speed = speedOf(model);
  const found = [];
  if (bytes) found.push(sizeText(bytes));
  if (context) found.push(`${context.toLocaleString("en")} tokens of context`);
  if (requests) found.push(requests === 1 ? "1 request" : `${requests} requests`);
  if (speed) found.push(`${speed.toFixed(speed < 10 ? 1 : 0)} tokens/s in its last answer here`);
  if (aliases.length) found.push(`also ${aliases.join(", ")}`);
  return found;
}

// --- Pulls -----------------------------------------------------------------------------------

function startPull(name, path) {
  if (pulls.get(name)?.[0].state === "running") return;
  pulls.get(name)?.[1].item.remove();
  const pull = new Pull(name, () => row.update());
  const row = new PullRow(pull);
  pulls.set(name, [pull, row]);
  $("pull-list").prepend(row.item);
  runPull(pull, row, path);
}

async function runPull(pull, row, path) {
  await pull.run(path);
  if (path && pull.state === "failed" && pull.status === "asking") {
    row.item.remove(); // Another client's, which has ended or which this key cannot watch.
    return;
  }
  $("status").textContent = pull.error ? "" : `${pull.name}: ${pull.text()}`;
  if (pull.state !== "done") return;
  try {
    row.id = await idOf(pull.name);
    await readModels();
  } catch {
    // The list will be read again; the row says what became of the pull.
  }
  row.update();
}

class PullRow {
  constructor(pull) {
    const { name } = pull;
    this.pull = pull;
    this.state = element("span", { className: "state" });
    this.figures = element("p", { className: "figures" });
    this.bar = element("progress", { "aria-label": `Pulling ${name}`, max: 1 });
    this.failure = element("div", { className: "failure" });
    this.stop = element("button", { type: "button", "aria-label": `Stop pulling ${name}`, click: () => pull.stop() }, "Stop");
    this.again = element("button", { type: "button", "aria-label": `Pull ${name} again`, click: () => runPull(pull, this) }, "Go on");
    this.close = element("button", { type: "button", className: "quiet", "aria-label": `Hide the pull of ${name}`,
      click: () => { this.item.remove(); pulls.delete(name); } }, "Hide");
    this.item = element("li", { className: "model" },
      element("div", { className: "what" },
        element("p", { className: "name" }, element("strong", {}, element("bdi", {}, name)), this.state), this.figures),
      element("div", { className: "do" }, this.stop, this.again, this.close), this.bar, this.failure);
  }

  update() {
    const { state, total, completed, error } = this.pull;
    const runs = state === "running";
    const hadFocus = this.item.contains(document.activeElement);
    this.state.textContent = { running: "downloading", done: "pulled", stopped: "stopped", failed: "failed" }[state];
    this.state.dataset.state = { running: "loading", done: "ready", failed: "failed" }[state] ?? "absent";
    this.figures.textContent = state === "done" ? this.afterwards() : state === "failed" ? "" : this.pull.text();
    this.bar.hidden = !runs;
    if (total) this.bar.value = completed / total;
    else this.bar.removeAttribute("value");
    this.stop.hidden = !runs;
    this.again.hidden = state !== "stopped";
    this.close.hidden = runs;
    if (hadFocus && document.activeElement === document.body) (runs ? this.stop : this.close).focus();
    if (error && this.shown !== error) this.failure.replaceChildren(errorCard(error, () => runPull(this.pull, this)));
    else if (!error) this.failure.replaceChildren();
    this.shown = error;
  }

  afterwards() {
    if (this.id === undefined) return "It is on the server’s disk.";
    if (findModel(this.id)) return "It is in the list below.";
    return this.id ? "It is on the server’s disk, but it is of a kind that Quire does not support."
      : "It is on the server’s disk, but this server answers for the models that it was started with "
        + "only: start quire serve without a model, or name this one with --load-on-demand.";
  }
}
