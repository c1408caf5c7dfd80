// Tokens tinted by their chance, and what else might have stood there.

import { $, element } from "./dom.js";

const METHODS = { ngram: "from the text before", draft_model: "by the draft model", self: "by the model in fewer bits" };

/** Return what is said of where a token comes from; nothing of those that the model drew. */
function originText(origin) {
  if (!origin || origin === "model") return "";
  if (origin === "grammar") return "the only one that the schema allows";
  return `proposed ${METHODS[origin] ?? `by ${origin}`}, accepted`;
}

/** Return the nodes of an answer: one span per token. */
export function tokenSpans({ content, tokens }) {
  const nodes = [];
  let at = 0;
  for (const [index, [text, probability, , , origin]] of tokens.entries()) {
    // Special tokens, and what a stop string took away, are not in the text.
    if (!text || !content.startsWith(text, at)) continue;
    at += text.length;
    const span = element("span", { className: "token" }, text);
    span.dataset.sure = [0.9, 0.6, 0.3, 0.1].filter((bound) => probability < bound).length;
    span.dataset.index = index;
    if (originText(origin)) span.dataset.origin = origin;
    nodes.push(span);
  }
  const rest = content.slice(at);
  return rest ? [...nodes, rest] : nodes;
}

/** Show the alternatives of a token's span; null hides them. */
export function showTip(span) {
  document.querySelector(".token.current")?.classList.remove("current");
  $("tip").hidden = !span;
  if (!span) return;
  span.classList.add("current");
  const [, probability, others, name, origin] = span.closest(".body").tokens[span.dataset.index];
  const isChosen = ([text]) => text === name;
  const list = others.some(isChosen) ? others : [...others, [name, probability]];
  const rows = list.map((row) => {
    const [text, share] = row;
    const bar = element("span", { className: "bar" });
    bar.style.setProperty("--share", `${share * 100}%`);
    const shown = text.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥");
    const percent = share > 0 && share < 0.001 ? "< 0.1%" : `${(share * 100).toFixed(1)}%`;
    return element("div", { className: isChosen(row) ? "row chosen" : "row" },
      bar, element("code", {}, shown), element("span", {}, percent));
  });
  const note = originText(origin);
  $("tip").replaceChildren(...rows, ...(note ? [element("div", { className: "origin" }, note)] : []));
  const box = [...span.getClientRects()].at(-1); // Of a token on two lines, where its word is.
  const tip = $("tip").getBoundingClientRect();
  const top = box.top - tip.height - 8;
  $("tip").style.left = `${Math.max(8, Math.min(box.left, innerWidth - tip.width - 8))}px`;
  $("tip").style.top = `${top < 8 ? box.bottom + 8 : top}px`;
}

function moveTip(body, step) {
  const spans = [...body.querySelectorAll(".token")];
  const at = spans.indexOf(body.querySelector(".current"));
  showTip(spans[Math.max(0, Math.min(spans.length - 1, at < 0 ? 0 : at + step))]);
  $("status").textContent = document.querySelector("#tip .chosen").textContent;
}

/** Show alternatives under the mouse, and of a focused answer by the arrow keys. */
export function listenToTokens() {
  for (const [log, scroll] of [["log", "scroll"], ["columns", "compare-scroll"]]) {
    const on = (name, run) => $(log).addEventListener(name, run);
    on("pointerover", ({ target }) => showTip(target.closest(".token")));
    on("pointerleave", () => showTip(null));
    on("focusout", () => showTip(null));
    $(scroll).addEventListener("scroll", () => showTip(null));
    on("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step || !event.target.tokens) return;
      event.preventDefault();
      moveTip(event.target, step);
    });
  }
}
