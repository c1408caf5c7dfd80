// The models of the server as the page knows them: which there are, where each stands, what they
// were asked to do. Nothing here touches the page; who shows them listens to `watchModels`.

import { call, wording } from "./api.js";

const SPEEDS = "quire.speeds";
const SOON_MS = 1000; // While something is under way.
const LATER_MS = 10000; // While the list is looked at.
const MOVING = new Set(["downloading", "loading", "draining", "unloading"]);

/** Each is {id, aliases, seesPictures, state, error, part, bytes, context, limited, requests, waiting}: `part` is
 *  loaded or downloaded, 0 to 1, or null while that is not known; `bytes` are of its files, `context` is in tokens, 0 or null where
 *  unknown; one that is `limited` has a limit of its own for answers; `requests` are being answered, and as many are `waiting` for it to be loaded;
 *  a download that `goesOn` ends with no page. */
let models = [];
let failure = null; // Why the list could not be read again.
let reads = 0;
let followers = 0; // Views that show the whole list.
let timer = 0;
const watchers = new Set();

export const listedModels = () => models;
/** Those that can be asked, loaded ones first: one that is being downloaded is not there yet. */
export const knownModels = () => models.filter(({ state }) => state !== "downloading")
  .sort((one, other) => rank(one) - rank(other));
const rank = ({ state }) => (state === "ready" ? 0 : state === "loading" ? 1 : 2);
export const listFailure = () => failure;
export const findModel = (name) => knownModels().find(({ id, aliases }) => id === name || aliases.includes(name));

/** Return the id of the model that requests mean by a name, null for none; throws a Failure. */
export async function idOf(name) {
  try {
    return (await (await call(`v1/models/${name.split("/").map(encodeURIComponent).join("/")}`)).json()).id;
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
}

function tell() {
  for (const run of watchers) run();
}

/** Call `run` whenever the list has been read, or could not be. */
export function watchModels(run) {
  watchers.add(run);
}

/** Read the list; throws a Failure. */
export async function readModels() {
  const read = ++reads;
  const { data } = await (await call("models")).json();
  if (read !== reads) return; // A later answer came first, or is about to.
  failure = null;
  models = data.map(({ id, aliases, capabilities = [], status, bytes, max_model_len, max_tokens, meta }) => ({
    id, aliases, bytes,
    seesPictures: capabilities.includes("vision"),
    goesOn: status.goes_on ?? false,
    state: status.value,
    error: status.error ?? "",
    part: status.total_bytes ? (status.loaded_bytes ?? status.downloaded_bytes) / status.total_bytes : null,
    context: max_model_len,
    limited: max_tokens != null,
    requests: meta?.requests ?? 0,
    waiting: status.waiting ?? 0,
  }));
  tell();
  plan();
}

const isMoving = () => models.some(({ state, waiting }) => waiting || MOVING.has(state));

/** Read the list again before long, and go on with it while something moves or is looked at. */
function plan() {
  clearTimeout(timer);
  if (document.hidden) return;
  if (isMoving()) timer = setTimeout(renew, SOON_MS);
  else if (followers) timer = setTimeout(renew, LATER_MS);
}

async function renew() {
  try {
    await readModels();
  } catch (error) {
    failure = wording(error);
    tell();
    clearTimeout(timer);
    if (!document.hidden && (followers || isMoving())) timer = setTimeout(renew, LATER_MS);
  }
}

/** Read the list at once and keep it fresh, until `followModels(false)`. */
export function followModels(follow) {
  followers = Math.max(0, followers + (follow ? 1 : -1));
  if (follow) renew();
}

/** Look soon where the models stand, because something is about to change that. */
export function lookSoon() {
  clearTimeout(timer);
  timer = setTimeout(renew, SOON_MS / 4);
}

document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : plan()));

/** Have the server load or unload a model; throws a Failure. */
export async function changeModel(action, name) {
  await call(`models/${action}`, { method: "POST", body: JSON.stringify({ model: name }) });
  await readModels();
  lookSoon();
}

// --- Speed -----------------------------------------------------------------------------------

/** Keep the tokens per second of an answer. */
export function noteSpeed(name, rate) {
  try {
    localStorage.setItem(SPEEDS, JSON.stringify({ ...speeds(), [name]: rate }));
  } catch {
    // No room: the list shows none.
  }
  tell();
}

/** Return the tokens per second of a model's last answer in this browser, or null. */
export function speedOf({ id, aliases }) {
  const kept = speeds();
  const found = [id, ...aliases].map((name) => (Object.hasOwn(kept, name) ? kept[name] : null));
  return found.find((rate) => Number.isFinite(rate)) ?? null;
}

function speeds() {
  try {
    const kept = JSON.parse(localStorage.getItem(SPEEDS));
    return kept && typeof kept === "object" ? kept : {};
  } catch {
    return {};
  }
}

// --- Words -----------------------------------------------------------------------------------

/** Return a size for people, in powers of ten as hubs and disks count. */
export function sizeText(bytes) {
  if (!bytes) return "";
  const units = ["B", "kB", "MB", "GB", "TB"];
  const at = Math.min(units.length - 1, Math.floor(Math.log10(bytes) / 3));
  const value = bytes / 1000 ** at;
  return `${value.toFixed(at && value < 100 ? 1 : 0)} ${units[at]}`;
}

/** Return where a model stands in a few words. */
export function stateText({ state, part, waiting }) {
  if (waiting && ["absent", "failed"].includes(state)) return "waits for memory";
  if (["loading", "downloading"].includes(state) && part !== null) return `${state}, ${Math.floor(part * 100)}%`;
  return { absent: "not loaded", draining: "ending its answers", unloading: "unloading" }[state] ?? state;
}
