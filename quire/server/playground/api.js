// What the chat page says to the server and hears from it; nothing here touches the page.

const API_KEY = "quire.api-key";
const TOP_LOGPROBS = 5;

/** A failure as text; `status` 0 means that there was no answer. */
export class Failure extends Error {
  constructor(status, title, text) {
    super(text);
    Object.assign(this, { status, title });
  }
}

/** Keep the key until the tab is closed; it is in no export and no file. */
export function useKey(key) {
  sessionStorage.setItem(API_KEY, key.trim());
}

/** Fetch a route; throws a Failure unless the status is a good one. */
export async function call(path, options = {}) {
  const headers = { "content-type": "application/json" };
  const key = sessionStorage.getItem(API_KEY);
  if (key) headers.authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure(0, "The server does not answer", "Is quire serve still running?");
  }
  if (response.ok) return response;
  const text = await response.text();
  let message = text;
  try {
    message = JSON.parse(text).error.message;
  } catch {
    // A proxy's page, say: shown as it is.
  }
  const title = response.status === 401 ? "This server needs an API key"
    : response.status < 500 ? `The server refused the request (${response.status})`
    : `The server failed (${response.status})`;
  throw new Failure(response.status, title, message || response.statusText);
}

/** Yield the data of each server-sent event. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
  }
}

/** Return the body of a chat completion; throws a Failure when the schema is not JSON. */
export function requestBody(settings, messages) {
  // A question that got no answer is not repeated to the model.
  const said = messages.filter(
    (message, i) => message.content && !(messages[i + 1]?.role === "assistant"
      && !messages[i + 1].content && i + 2 < messages.length));
  const body = {
    model: settings.model || undefined,
    messages: said.map(({ role, content }) => ({ role, content })),
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
  };
  if (settings.system.trim()) body.messages.unshift({ role: "system", content: settings.system });
  for (const name of ["temperature", "top_p", "max_tokens", "seed"])
    if (settings[name] !== "") body[name] = Number(settings[name]);
  const stop = settings.stop.split("\n").filter(Boolean);
  if (stop.length) body.stop = stop;
  if (settings.logprobs) Object.assign(body, { logprobs: true, top_logprobs: TOP_LOGPROBS });
  if (settings.json) {
    const schema = parseSchema(settings.schema);
    const json_schema = { name: "answer", schema, strict: true };
    body.response_format = { type: "json_schema", json_schema };
  }
  return body;
}

/** Parse a schema or say in a Failure why that fails. */
export function parseSchema(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Failure(0, "The schema is not JSON", error.message);
  }
}

/** Return a function that adds one chunk to `message`. */
export function receiver(message) {
  const sent = performance.now();
  const decoder = new TextDecoder();
  let first = null;
  let firstTokens = 0;
  const share = (logprob) => Number(Math.exp(logprob).toPrecision(3));
  return (chunk) => {
    if (chunk.error) throw new Failure(chunk.error.code, "The answer broke off", chunk.error.message);
    const now = performance.now();
    message.usage = chunk.usage ?? message.usage;
    const tokens = message.usage?.completion_tokens ?? 0;
    const choice = chunk.choices[0];
    if (first === null && tokens) {
      [first, firstTokens] = [now, tokens];
      message.firstMs = now - sent;
      message.rate = (tokens * 1000) / message.firstMs; // All there is when no chunk follows.
    } else if (choice && tokens > firstTokens) {
      message.rate = ((tokens - firstTokens) * 1000) / Math.max(now - first, 0.1);
    }
    message.content += choice?.delta.content ?? "";
    message.finish = choice?.finish_reason ?? message.finish;
    for (const entry of choice?.logprobs?.content ?? []) {
      // A character may span tokens; it belongs to the one that completes it.
      const text = decoder.decode(new Uint8Array(entry.bytes), { stream: true });
      const others = entry.top_logprobs.map(({ token, logprob }) => [token, share(logprob)]);
      message.tokens.push([text, share(entry.logprob), others, entry.token]);
    }
  };
}

/** Return an error as it is kept and shown. */
export function wording(error) {
  if (error instanceof Failure) return { status: error.status, title: error.title, text: error.message };
  // The stream itself failed, as it does when the server is killed.
  return { status: 0, title: "The answer broke off", text: `The connection was lost (${error.message}).` };
}
