// One question to one model: sent, and the answer added to a message as it comes.

import { Failure, call, events, receiver, wording } from "./api.js";
import { findModel, noteSpeed } from "./models.js";

const MAX_TOKENS = 1024; // Of an answer, unless a setting or the model says otherwise.

/** Send a chat completion and add to `message` what comes; its errors and its end are kept in it.
 *
 *  `question` is {body, limit} or, where there can be none, {error}. At `limit` tokens the answer is
 *  ended; `grown` is called after each chunk. */
export async function ask({ body, limit, error: problem }, message, controller, grown) {
  try {
    if (problem) throw problem;
    const take = receiver(message);
    const options = { method: "POST", body: JSON.stringify(body), signal: controller.signal };
    const response = await call("v1/chat/completions", options);
    let complete = false, full = false;
    for await (const data of events(response.body)) {
      complete = data === "[DONE]";
      if (!complete) take(JSON.parse(data));
      grown();
      // Sent, the limit would have a question refused that leaves less room in a short context.
      full = !complete && !message.finish && message.usage?.completion_tokens >= limit;
      if (full) break;
    }
    if (full) {
      message.finish = "length";
      controller.abort();
    } else if (!complete) throw new Failure(0, "The answer broke off", "The connection was lost.");
  } catch (error) {
    if (controller.signal.aborted) message.finish = "you";
    else message.error = wording(error);
  }
  if (body?.model && message.rate) noteSpeed(body.model, message.rate);
}

/** Return the tokens that an answer may have where the server knows no limit; Infinity for no limit. */
export function limitOf(settings, model) {
  return settings.max_tokens !== "" || findModel(model)?.limited ? Infinity : MAX_TOKENS;
}

/** Return what an answer is before anything of it came. */
export function emptyAnswer(json) {
  return { content: "", reasoning: "", reasoningMs: null, tokens: [], json, usage: null, firstMs: null, rate: null, steps: 0 };
}
