// Pictures that people paste, drop or choose: read, made small enough to be kept, and shown above
// the text that they will be sent with.

import { $, element, iconButton, notify } from "./dom.js";

const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"]; // What the server reads.
// What is larger is drawn anew: a browser keeps about 5 MB of conversations.
const MAX_EDGE = 1536;
const MAX_BYTES = 2 ** 20;

let chosen = []; // As data URLs.
let reading = Promise.resolve();

/** Return pictures as a list to be shown; with `remove(index)` each has a button for that. */
export function pictureList(urls, remove = null) {
  const item = (src, index) => {
    const name = `Picture ${index + 1}`;
    const button = remove && iconButton("cross", `Remove picture ${index + 1}`, () => remove(index));
    return element("li", {}, element("img", { src, alt: name, title: name }), ...(button ? [button] : []));
  };
  return element("ul", { className: "pictures", "aria-label": "Pictures" }, ...urls.map(item));
}

/** Return the pictures that were chosen, those that are still being read included, and let go of them. */
export async function takePictures() {
  await reading;
  const taken = chosen;
  setPictures([]);
  return taken;
}

export function setPictures(urls) {
  chosen = urls;
  const remove = (index) => {
    setPictures(chosen.filter((_, at) => at !== index));
    $("prompt").focus();
  };
  $("pictures").replaceChildren(...pictureList(chosen, remove).childNodes);
  $("pictures").hidden = !chosen.length;
}

async function read(files) {
  for (const file of files) {
    try {
      setPictures([...chosen, await dataUrl(file)]);
    } catch {
      notify(`${file.name} is no picture that this browser can read.`);
    }
  }
  $("prompt").focus();
}

async function dataUrl(file) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, MAX_EDGE / Math.max(bitmap.width, bitmap.height));
  if (scale === 1 && file.size <= MAX_BYTES && TYPES.includes(file.type)) return fileUrl(file);
  const canvas = element("canvas", {
    width: Math.max(1, Math.round(bitmap.width * scale)),
    height: Math.max(1, Math.round(bitmap.height * scale)),
  });
  const context = canvas.getContext("2d");
  context.fillStyle = "white"; // As the server puts under what is transparent.
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.92);
}

function fileUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}

/** Begin; `accept()` is called before files are read, and says whether they are. */
export function startPictures(accept) {
  const add = (list) => {
    const files = [...list]; // The browser empties the list after the event.
    if (files.length && accept()) reading = reading.then(() => read(files));
  };
  const holdsFiles = ({ dataTransfer }) => dataTransfer?.types.includes("Files");
  addEventListener("dragover", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    $("composer").classList.add("dropping");
  });
  addEventListener("dragleave", ({ relatedTarget }) => {
    if (!relatedTarget) $("composer").classList.remove("dropping"); // Else it only went to another element.
  });
  addEventListener("drop", (event) => {
    $("composer").classList.remove("dropping");
    if (!holdsFiles(event)) return;
    event.preventDefault(); // Else the browser would go to the file.
    add(event.dataTransfer.files);
  });
  $("prompt").addEventListener("paste", (event) => {
    // A table of a spreadsheet comes as text and as its picture: the text is meant.
    if (!event.clipboardData.files.length || event.clipboardData.types.includes("text/plain")) return;
    event.preventDefault();
    add(event.clipboardData.files);
  });
  $("attach").addEventListener("click", () => $("picture-file").click());
  $("picture-file").addEventListener("change", () => {
    add($("picture-file").files);
    $("picture-file").value = "";
  });
}
