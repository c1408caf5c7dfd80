// What the chat page says to the server and hears from it; nothing here touches the page.

const API_KEY = "quire.api-key";
const TOP_LOGPROBS = 5;

/** A failure as text; `status` 0 means that there was no answer, `retryAt` is in ms since 1970. */
export class Failure extends Error {
  constructor(status, title, text, retryAt = null) {
    super(text);
    Object.assign(this, { status, title, retryAt });
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
    if (error instanceof TypeError && key && !/^[\x20-\x7e]*$/.test(key))
      throw new Failure(401, "This API key is wrong", "A key holds no such characters.");
    throw new Failure(0, "The server does not answer", "Is quire serve still running?");
  }
  if (response.ok) return response;
  throw failureOf(response, await response.text(), Boolean(key));
}

function failureOf(response, text, withKey) {
  const { status } = response;
  let message = text;
  try {
    const { error } = JSON.parse(text);
    message = typeof error === "string" ? error : error.message; // Ollama's routes have a text there.
  } catch {
    // A proxy's page, say: shown as it is.
  }
  const titles = {
    401: withKey ? "This API key is wrong" : "This server needs an API key",
    403: "This API key may not do that",
    429: "The server has too much to do (429)",
    503: "The server cannot answer now (503)",
  };
  const title = titles[status] ?? (status < 500 ? `The server refused the request (${status})`
    : `The server failed (${status})`);
  const seconds = Number(response.headers.get("retry-after") || NaN);
  const retryAt = Number.isFinite(seconds) ? Date.now() + seconds * 1000 : null;
  return new Failure(status, title, message || response.statusText, retryAt);
}

/** Yield the data of each server-sent event. */
export async function* events(body) {
  for await (const part of parts(body, "\n\n")) if (part.startsWith("data: ")) yield part.slice(6);
}

/** Yield the lines of a body that are not empty. */
export async function* lines(body) {
  for await (const line of parts(body, "\n")) if (line) yield line;
}

async function* parts(body, end) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const found = (rest + value).split(end);
    rest = found.pop();
    yield* found;
  }
}

/** Return the body of a chat completion; throws a Failure when the schema is not JSON.
 *  With `goesOn` the last of the messages is an answer that the model goes on with. */
export function requestBody(settings, messages, goesOn) {
  // A question that got no answer is not repeated to the model.
  const said = messages.filter(
    (message, i) => (message.content || message.pictures?.length) && !(messages[i + 1]?.role === "assistant"
      && !messages[i + 1].content && i + 2 < messages.length));
  const body = {
    model: settings.model || undefined,
    messages: said.map(({ role, content, pictures }) => ({ role, content: partsOf(content, pictures) })),
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
    return_token_origins: true,
  };
  if (goesOn) {
    body.continue_final_message = true;
    if (said.at(-1).reasoning) body.messages.at(-1).reasoning_content = said.at(-1).reasoning;
  }
  if (settings.system.trim()) body.messages.unshift({ role: "system", content: settings.system });
  for (const name of ["temperature", "top_p", "repetition_penalty", "max_tokens", "seed"])
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

/** Return a content: a text or, with pictures, a list of these and the text. */
function partsOf(text, pictures = []) {
  if (!pictures.length) return text;
  const shown = pictures.map((url) => ({ type: "image_url", image_url: { url } }));
  return text ? [...shown, { type: "text", text }] : shown;
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
    const thought = choice?.delta.reasoning_content ?? choice?.delta.reasoning ?? "";
    if (thought) {
      message.reasoning = (message.reasoning ?? "") + thought;
      message.reasoningMs = now - sent;
    }
    message.content += choice?.delta.content ?? "";
    message.finish = choice?.finish_reason ?? message.finish;
    const origins = choice?.token_origins ?? [];
    message.steps = (message.steps ?? 0) + origins.filter((origin) => origin === "model").length;
    for (const [index, entry] of (choice?.logprobs?.content ?? []).entries()) {
      // A character may span tokens; it belongs to the one that completes it.
      const text = decoder.decode(new Uint8Array(entry.bytes), { stream: true });
      const others = entry.top_logprobs.map(({ token, logprob }) => [token, share(logprob)]);
      message.tokens.push([text, share(entry.logprob), others, entry.token, origins[index]]);
    }
  };
}

/** Return an error as it is kept and shown. */
export function wording(error) {
  if (error instanceof Failure) {
    const { status, title, message, retryAt } = error;
    return { status, title, text: message, retryAt };
  }
  // The stream itself failed, as it does when the server is killed.
  return { status: 0, title: "The answer broke off", text: `The connection was lost (${error.message}).` };
}
