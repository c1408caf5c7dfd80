// Pulls of models: asked for by name, told of as they go on, given up. They are the server's: a page
// that is closed only looks away. Nothing here touches the page.

import { Failure, call, lines, wording } from "./api.js";
import { sizeText } from "./models.js";

/** One pull: {name, status, completed, total, rate, error, state}, where `state` is `running`, `done`,
 *  `stopped` or `failed`, bytes are of the file that is being fetched, and `rate` is bytes/s or null. */
export class Pull {
  constructor(name, changed) {
    Object.assign(this, { name, changed });
    this.reset();
  }

  reset() {
    Object.assign(this, { status: "asking", completed: 0, total: 0, rate: null, error: null, state: "running", stopping: false });
  }

  /** Fetch the model, or join a pull of it that is under way; what an earlier one left is gone on from. */
  async run(path = "models/pull") {
    this.reset();
    this.changed(this);
    try {
      const body = JSON.stringify({ model: this.name });
      const response = await call(path, { method: "POST", body });
      for await (const line of lines(response.body)) this.take(JSON.parse(line));
      if (this.status !== "success") throw new Failure(0, "The pull broke off", "The connection was lost.");
      this.state = "done";
    } catch (error) {
      this.state = this.stopping ? "stopped" : "failed";
      if (this.state === "failed") this.error = { ...wording(error), ...(error instanceof Failure ? {} : { title: "The pull broke off" }) };
    }
    this.changed(this);
  }

  take({ status, completed = 0, total = 0, error }) {
    if (error) throw new Failure(0, "The model could not be downloaded.", error);
    const now = performance.now();
    if (status !== this.status || !this.first) this.first = { now, completed };
    Object.assign(this, { status, completed, total });
    const seconds = (now - this.first.now) / 1000;
    if (seconds > 0.5) this.rate = (completed - this.first.completed) / seconds;
    this.changed(this);
  }

  /** Give it up; what came stays on the server for the next pull. */
  async stop() {
    this.stopping = true;
    try {
      await call("models/pull/cancel", { method: "POST", body: JSON.stringify({ model: this.name }) });
    } catch {
      this.stopping = false; // It goes on, as its row says.
    }
  }

  /** Return how far it is, as text. */
  text() {
    if (this.state === "done") return "pulled";
    if (this.state === "stopped") return "stopped; what came is kept, and the next pull goes on from there";
    if (this.state === "failed") return "failed";
    if (!this.total) return this.status;
    const parts = [`${sizeText(this.completed) || "0 B"} of ${sizeText(this.total)}`];
    if (this.rate) parts.push(`${sizeText(this.rate)}/s`, `${durationText((this.total - this.completed) / this.rate)} left`);
    return parts.join(" · ");
  }
}

function durationText(seconds) {
  if (seconds < 90) return `${Math.ceil(seconds)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}
