// The conversations that this browser keeps. One is {id, title, model, updated, messages, leaf};
// its messages form a tree, because an edited or repeated one stands next to what it was.

const PREFIX = "quire.chat.";
const MAX_TITLE = 60;

// A message is {parent, role, content}, for a question {pictures}, data URLs, and, for an answer, {reasoning, reasoningMs, tokens, usage,
// finish, firstMs, rate, json, model, error, edited}. `parent` and `leaf` are indices of `messages`, -1 is
// none. A token is [text, probability, [[text, probability], ...], name].

export function createConversation() {
  const id = Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
  return { id, title: "", model: "", updated: Date.now(), messages: [], leaf: -1 };
}

/** Return the messages from the first to the leaf: what is shown and sent. */
export function shownMessages({ messages, leaf }) {
  const path = [];
  for (let at = leaf; at >= 0; at = messages[at].parent) path.unshift(messages[at]);
  return path;
}

/** Add a message below the leaf and return it; the first one names the conversation. */
export function addMessage(chat, message) {
  const added = { parent: chat.leaf, ...message };
  chat.leaf = chat.messages.push(added) - 1;
  chat.title ||= message.content.trim().replace(/\s+/g, " ").slice(0, MAX_TITLE) || "Picture";
  return added;
}

/** Make an answer the leaf and return it, to be added to. Where messages follow it, that is a copy
 *  next to it: they belong to the answer as it was. */
export function openAnswer(chat, message) {
  chat.leaf = message.parent;
  if (isFollowed(chat, message)) return addMessage(chat, structuredClone(message));
  chat.leaf = chat.messages.indexOf(message);
  return message;
}

export function isFollowed({ messages }, message) {
  const at = messages.indexOf(message);
  return messages.some(({ parent }) => parent === at);
}

/** Return the messages that stand in the same place, in the order in which they came. */
export function versions(chat, message) {
  return chat.messages.filter(({ parent, role }) => parent === message.parent && role === message.role);
}

/** Show a message and the latest that follows it. */
export function showVersion(chat, message) {
  let at = chat.messages.indexOf(message);
  for (let next = at; next >= 0; ) {
    at = next;
    next = chat.messages.findLastIndex(({ parent }) => parent === at);
  }
  chat.leaf = at;
}

/** Read a conversation from storage or a file; throws when it is something else. */
export function readConversation(data) {
  const list = data?.messages;
  const isMessage = (message, i) =>
    ["user", "assistant"].includes(message?.role) && typeof message.content === "string"
    && (message.pictures ?? []).every((url) => url.startsWith("data:image/"))
    && (message.parent === undefined
      || (Number.isInteger(message.parent) && message.parent >= -1 && message.parent < i));
  if (!Array.isArray(list) || !list.every(isMessage))
    throw new Error("It holds no list of messages with role and content.");
  const messages = list.map((message, i) => ({ ...message, parent: message.parent ?? i - 1 }));
  const leaf = Number.isInteger(data.leaf) && data.leaf < messages.length ? data.leaf : messages.length - 1;
  const title = typeof data.title === "string" && data.title
    || messages.find(({ content }) => content)?.content.slice(0, MAX_TITLE) || "";
  const chat = { ...createConversation(), title, messages, leaf: Math.max(leaf, -1) };
  if (typeof data.id === "string") chat.id = data.id;
  if (typeof data.model === "string") chat.model = data.model;
  if (Number.isFinite(data.updated)) chat.updated = data.updated;
  return chat;
}

/** Return all conversations, the latest first; what cannot be read is left alone. */
export function loadConversations() {
  return storedKeys().map((key) => loadConversation(key.slice(PREFIX.length)))
    .filter(Boolean).sort((one, other) => other.updated - one.updated);
}

const storedKeys = () => Object.keys(localStorage).filter((key) => key.startsWith(PREFIX));

/** Return a conversation, or null when there is none of that id. */
export function loadConversation(id) {
  try {
    return { ...readConversation(JSON.parse(localStorage.getItem(PREFIX + id))), id };
  } catch {
    return null;
  }
}

/** Keep a conversation; false when the browser has no room for it. */
export function saveConversation(chat) {
  const write = (kept) => localStorage.setItem(PREFIX + kept.id, JSON.stringify(kept));
  // Probabilities take far more room than text: the others' go first, then this one's.
  const bare = (kept) => ({ ...kept, messages: kept.messages.map(({ tokens, ...message }) => message) });
  const others = () => loadConversations().filter(({ id }) => id !== chat.id).map(bare).forEach(write);
  for (const attempt of [() => write(chat), () => { others(); write(chat); }, () => write(bare(chat))]) {
    try {
      attempt();
      return true;
    } catch {
      // No room yet.
    }
  }
  return false;
}

export function removeConversation(id) {
  localStorage.removeItem(PREFIX + id);
}

/** Await `run()` while no other tab may do the same with this conversation; false if one does it. */
export async function exclusively(id, run) {
  // Without HTTPS there are no locks, but on this machine.
  const locks = navigator.locks ?? { request: (name, options, start) => start({ name }) };
  return locks.request(PREFIX + id, { ifAvailable: true }, async (lock) => {
    if (lock) await run();
    return Boolean(lock);
  });
}

/** Call `run` with an id when another tab has changed or removed that conversation. */
export function watchConversations(run) {
  addEventListener("storage", ({ key }) => {
    if (key?.startsWith(PREFIX)) run(key.slice(PREFIX.length));
  });
}
