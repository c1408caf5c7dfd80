// Elements and the little things that the whole page shares. Text of users and models reaches the
// page as text nodes only.

export const $ = (id) => document.getElementById(id);
export const narrow = matchMedia("(max-width: 56rem)");

/** Make an element; a function among `properties` is a listener, a key with a dash an attribute. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (name.includes("-") || name === "role") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}

const ICONS = {
  pen: "M4 16l1-4 8.5-8.5a1.4 1.4 0 0 1 2 0l1 1a1.4 1.4 0 0 1 0 2L8 15z",
  bin: "M4 6h12M8 6V4h4v2M6 6l.7 10h6.6L14 6",
  back: "M12 5l-5 5 5 5",
  on: "M8 5l5 5-5 5",
  cross: "M6 6l8 8M14 6l-8 8",
};

/** Return a button that shows an icon and says what it does. */
export function iconButton(icon, label, click) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const path = document.createElementNS(space, "path");
  path.setAttribute("d", ICONS[icon]);
  svg.setAttribute("viewBox", "0 0 20 20");
  svg.setAttribute("aria-hidden", "true");
  svg.append(path);
  return element("button", { type: "button", className: "quiet tiny", "aria-label": label, title: label, click }, svg);
}

/** Return a button that copies what `read` returns and says that it did. */
export function copyButton(read) {
  const button = element("button", { type: "button", className: "quiet", click: copy }, "Copy");
  async function copy() {
    const done = await copyText(read());
    button.textContent = done ? "Copied" : "Not allowed";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  }
  return button;
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Without HTTPS there is no clipboard but this one.
    const field = element("textarea", { value: text, className: "unseen" });
    const before = document.activeElement;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    before?.focus();
    return done;
  }
}

/** Show a notice above the conversation; `actions` are [label, function]. */
export function notify(text, ...actions) {
  const hide = () => ($("notice").hidden = true);
  const buttons = [...actions, ["Close", () => {}]].map(([label, run]) =>
    element("button", { type: "button", click: () => { hide(); run(); } }, label));
  $("notice").className = "notice";
  $("notice").replaceChildren(element("p", {}, text), element("div", {}, ...buttons));
  $("notice").hidden = false;
}

export function nearEnd() {
  const { scrollHeight, scrollTop, clientHeight } = $("scroll");
  return scrollHeight - scrollTop - clientHeight < 90;
}

export function scrollDown() {
  $("scroll").scrollTop = $("scroll").scrollHeight;
}
