/** The baseline of streams over HTTP: bytes written by plain Node to responses that are open. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import type { Arrivals } from "./arrivals.ts";
import type { BenchContext } from "./bench.ts";
import { createHttpClient } from "./http-client.ts";

export interface BareHttp {
  /** Each event on one of the streams arrives at `arrivals`. */
  openStreams(count: number, arrivals: Arrivals): Promise<void>;
  /** Has the text written to all streams; says when that began, see `atMs`. */
  push(text: string): Promise<number>;
}

export async function startBareHttp(context: BenchContext): Promise<BareHttp> {
  const program = fileURLToPath(new URL("./bare-http-program.ts", import.meta.url));
  const child = spawn(process.execPath, ["--import", "tsx", program], { stdio: ["pipe", "pipe", "inherit"] });
  context.defer(async () => {
    const ended = once(child, "exit");
    child.stdin?.end();
    await ended;
  });
  const [port] = (await once(createInterface(child.stdout!), "line")) as [string];
  const client = createHttpClient(context, `http://127.0.0.1:${port}`);
  return {
    async openStreams(count, arrivals) {
      for (let n = 0; n < count; n++) await client.open("/", arrivals);
    },
    push: async (text) => Number(await client.call("POST", "/", text)) / 1e6,
  };
}
