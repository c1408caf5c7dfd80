// Markdown as elements: the server reads it into a tree, which is built here from elements and text
// nodes. While a text grows, only its last block is read again.

import { Failure, call } from "./api.js";
import { copyButton, element } from "./dom.js";
import { highlight } from "./highlight.js";

const TAGS = new Set(("h3 h4 h5 h6 p ul ol li blockquote em strong del code pre a br hr "
  + "table thead tbody tr th td").split(" "));
const PIECE = 15000; // Characters that are read at once; of a longer block up to the server's limit.
const MAX_PIECE = 60000;
const PAUSE_MS = 150;
const FIRST_WAIT_MS = 1000; // After a failure; the next one waits twice as long.
const MAX_WAIT_MS = 60000;
const MAX_REMEMBERED = 300;

const remembered = new Map(); // Whole texts and their blocks, [start, node].
const waiting = []; // Of those that want to read, the latest first.
let reading = false;
let refusal = null; // While no text is sent, after a failure that may pass: {error, over, end}.
let waitMs = FIRST_WAIT_MS;

/** One container's text; shown as it is until it has been read, and when it cannot be. */
export class MarkdownView {
  constructor(container) {
    Object.assign(this, { container, blocks: [], text: null, shown: null, grows: false, busy: false });
  }

  /** Show a text; `grows` says that more will follow. */
  show(text, grows) {
    const same = text === this.text && grows === this.grows;
    Object.assign(this, { text, grows });
    if (same) return;
    if (this.blocks.length === 0) this.showPlain();
    if (text && !this.busy) this.follow();
  }

  showPlain() {
    this.blocks = [];
    this.container.classList.add("plain");
    this.container.replaceChildren(this.text);
  }

  async follow() {
    this.busy = true;
    while (this.shown !== this.text || this.wasGrowing !== this.grows) {
      const { text, grows } = this;
      const began = performance.now();
      this.container.setAttribute("aria-busy", "true");
      try {
        await this.read(text, grows);
      } catch (error) {
        if (error.status === 429) await pause(1000);
        else if (error === refusal?.error) {
          this.showPlain();
          this.container.removeAttribute("aria-busy");
          await refusal.over;
          if (!this.container.isConnected) break; // The page does not show it any more.
        } else {
          this.failed = true; // Too complex or too long: text is what there is.
          break;
        }
        continue;
      }
      Object.assign(this, { shown: text, wasGrowing: grows });
      if (this.grows) await pause(Math.max(PAUSE_MS, 4 * (performance.now() - began)));
    }
    if (this.failed) {
      this.showPlain();
      this.show = (text) => { this.text = text; this.showPlain(); };
    }
    this.busy = false;
    this.container.removeAttribute("aria-busy");
  }

  async read(text, grows) {
    // What stands before the last block changes no more, unless a reference is defined later.
    const grew = grows && this.shown && text.startsWith(this.shown);
    const from = grew && this.blocks.length ? this.blocks.at(-1).start : 0;
    const found = (!grows && remembered.get(text)) || await readFrom(text, from);
    if (!grows) remember(text, found);
    if (text !== this.text && !this.text.startsWith(text)) return;
    const before = this.blocks;
    const kept = before.filter(({ start }) => start < from);
    const blocks = found.map(([start, node], i) => {
      const json = JSON.stringify(node);
      const old = before[kept.length + i];
      return old?.json === json ? { ...old, start } : { start, json, element: build(node) };
    });
    this.blocks = [...kept, ...blocks];
    this.arrange();
    this.container.dispatchEvent(new Event("grown", { bubbles: true }));
  }

  /** Put the blocks into the container; those that are there already are not touched. */
  arrange() {
    const { container, blocks } = this;
    container.classList.remove("plain");
    blocks.forEach(({ element: block }, i) => {
      const there = container.childNodes[i];
      if (there === block) return;
      if (there && !blocks.slice(i + 1).some((later) => later.element === there)) there.replaceWith(block);
      else container.insertBefore(block, there ?? null);
    });
    while (container.childNodes.length > blocks.length) container.lastChild.remove();
  }
}

function remember(text, blocks) {
  remembered.delete(text);
  remembered.set(text, blocks);
  if (remembered.size > MAX_REMEMBERED) remembered.delete(remembered.keys().next().value);
}

/** Let texts be read again that could not be: a key has changed, or the server answers. */
export function readAgain() {
  waitMs = FIRST_WAIT_MS;
  refusal?.end();
}

addEventListener("keychange", readAgain);

/** Send no text for a while: no server, a wrong key, a server that fails. */
function refuse(error) {
  const mine = { error };
  mine.over = new Promise((resolve) => {
    mine.end = () => {
      if (refusal === mine) refusal = null;
      resolve();
    };
  });
  refusal = mine;
  setTimeout(mine.end, waitMs);
  waitMs = Math.min(2 * waitMs, MAX_WAIT_MS);
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Return the blocks of `text` from `from` on, of a long one piece by piece. */
async function readFrom(text, from) {
  const found = [];
  for (let at = from, size = PIECE; ;) {
    const piece = wholeCharacters(text, at, at + size);
    const blocks = (await inTurn(() => request(piece))).map(([start, node]) => [start + at, node]);
    if (at + piece.length >= text.length) return [...found, ...blocks];
    const last = blocks.pop(); // It may go on after the piece.
    if (last && last[0] > at) {
      found.push(...blocks);
      at = last[0];
      size = PIECE;
    } else if (size < MAX_PIECE) size *= 2;
    else throw new Failure(413, "The text is too long", "One block is longer than a piece may be.");
  }
}

/** Return a part of a text that ends one earlier where it would end inside of a character. */
function wholeCharacters(text, start, end) {
  const isCut = end < text.length && text.codePointAt(end - 1) > 0xffff;
  return text.slice(start, isCut ? end - 1 : end);
}

async function request(text) {
  if (refusal) throw refusal.error;
  try {
    const response = await call("playground/render", { method: "POST", body: JSON.stringify({ text }) });
    const { blocks } = await response.json();
    waitMs = FIRST_WAIT_MS;
    return blocks;
  } catch (error) {
    if (![400, 413, 429].includes(error.status)) refuse(error);
    throw error;
  }
}

/** Run one request at a time, the latest first: it is what is looked at. */
async function inTurn(run) {
  if (reading) await new Promise((resolve) => waiting.push(resolve));
  reading = true;
  try {
    return await run();
  } finally {
    reading = false;
    waiting.pop()?.();
  }
}

function build(node) {
  if (typeof node === "string") return document.createTextNode(node);
  const [tag, attributes, ...children] = node;
  if (tag === "pre") return codeBlock(children[0], attributes.language);
  const made = document.createElement(TAGS.has(tag) ? tag : "span");
  if (tag === "a" && /^(https?|mailto):/i.test(attributes.href)) {
    const { href } = attributes;
    Object.assign(made, { href, title: href, target: "_blank", rel: "noopener noreferrer nofollow" });
  }
  if (tag === "ol" && attributes.start) made.start = attributes.start;
  if (attributes.align) made.dataset.align = attributes.align;
  made.append(...children.map(build));
  return tag === "table" ? element("div", { className: "table", tabIndex: 0 }, made) : made;
}

function codeBlock(code, language) {
  const text = code.replace(/\n$/, "");
  const head = element("div", { className: "code-head" },
    element("span", {}, language ?? "code"), copyButton(() => text));
  const lines = element("pre", { tabIndex: 0 }, element("code", {}, ...highlight(text, language)));
  return element("div", { className: "code" }, head, lines);
}
