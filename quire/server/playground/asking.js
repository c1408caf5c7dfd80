// One question to one model: sent, and the answer added to a message as it comes.

import { Failure, call, events, receiver, wording } from "./api.js";
import { noteSpeed } from "./models.js";

/** Send a chat completion and add to `message` what comes; its errors and its end are kept in it.
 *
 *  `question` is {body} or, where there can be none, {error}; `grown` is called after each chunk. */
export async function ask({ body, error: problem }, message, controller, grown) {
  try {
    if (problem) throw problem;
    const take = receiver(message);
    const options = { method: "POST", body: JSON.stringify(body), signal: controller.signal };
    const response = await call("v1/chat/completions", options);
    let complete = false;
    for await (const data of events(response.body)) {
      complete = data === "[DONE]";
      if (!complete) take(JSON.parse(data));
      grown();
    }
    if (!complete) throw new Failure(0, "The answer broke off", "The connection was lost.");
  } catch (error) {
    if (controller.signal.aborted) message.finish = "you";
    else message.error = wording(error);
  }
  if (body?.model && message.rate) noteSpeed(body.model, message.rate);
}

/** Return what an answer is before anything of it came. */
export function emptyAnswer(json) {
  return { content: "", reasoning: "", reasoningMs: null, tokens: [], json, usage: null, firstMs: null, rate: null, steps: 0 };
}
