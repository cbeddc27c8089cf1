// The official client's own worker of self-hosted environments, as its documentation starts it. Says on standard output what
// it does; SIGTERM ends it as its users end it.
import Anthropic from "@anthropic-ai/sdk";

const { WORKER_URL, WORKER_ENVIRONMENT, WORKER_KEY, WORKER_DIR, WORKER_IDLE_MS } = process.env;
const log = (level) => (message, facts) => console.log(JSON.stringify({ level, message, facts }));
const client = new Anthropic({
  baseURL: WORKER_URL,
  authToken: "unused",
  logLevel: "info",
  logger: { error: log("error"), warn: log("warn"), info: log("info"), debug: log("debug") },
});
const stop = new AbortController();
process.on("SIGTERM", () => stop.abort());
await client.beta.environments.work
  .worker({
    environmentId: WORKER_ENVIRONMENT,
    environmentKey: WORKER_KEY,
    workdir: WORKER_DIR,
    maxIdleMs: Number(WORKER_IDLE_MS),
  })
  .run(stop.signal);
