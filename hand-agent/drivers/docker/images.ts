/** Images that an environment names: there, or pulled where it says so. */
import type { Clock } from "../../../kit/clock.ts";
import { HandError } from "../driver.ts";
import { type Engine, EngineError } from "./engine.ts";

/** Engines tell of every layer many times a second. */
const TELL_EVERY_MS = 500;

interface PullEvent {
  readonly id?: string;
  readonly status?: string;
  readonly error?: string;
  readonly progressDetail?: { readonly current?: number; readonly total?: number };
}

export interface PullOptions {
  readonly onProgress: (detail: string) => void;
  readonly clock: Clock;
  readonly signal: AbortSignal | undefined;
}

/** Rejects with HandError. Pulls of one image side by side are the engine's to merge. */
export async function pullImage(engine: Engine, image: string, options: PullOptions): Promise<void> {
  const { onProgress, clock, signal } = options;
  onProgress(`pulling the image ${image}`);
  const reference = /[:@][^/]*$/.test(image) ? image : `${image}:latest`;
  const stream = await engine.ask(`pull the image ${image}`, (docker) => docker.pull(reference));
  const stop = () => void (stream as NodeJS.ReadableStream & { destroy(error?: Error): void }).destroy();
  signal?.addEventListener("abort", stop, { once: true });
  if (signal?.aborted) stop();
  const layers = new Map<string, { current: number; total: number }>();
  let news = "";
  const stopTelling = clock.every(TELL_EVERY_MS, () => {
    if (news !== "") onProgress(news);
    news = "";
  });
  try {
    for await (const event of eventsOf(stream)) {
      if (event.error !== undefined) throw new HandError(`could not pull the image ${image}: ${event.error}`);
      const { current, total } = event.progressDetail ?? {};
      if (event.id === undefined || current === undefined || total === undefined) continue;
      layers.set(`${event.id} ${event.status}`, { current, total });
      news = `pulling the image ${image}${progressOf([...layers.values()])}`;
    }
  } catch (error) {
    signal?.throwIfAborted();
    if (error instanceof HandError) throw error;
    throw new EngineError(`the pull of the image ${image} broke off`, undefined, { cause: error });
  } finally {
    stopTelling();
    signal?.removeEventListener("abort", stop);
  }
  signal?.throwIfAborted();
}

export function missingImage(image: string): HandError {
  return new HandError(
    `the engine has no image ${image}; pull it on the hand agent's machine, or let the environment pull it (container.pull)`,
  );
}

function progressOf(layers: readonly { current: number; total: number }[]): string {
  const current = layers.reduce((sum, layer) => sum + layer.current, 0);
  const total = layers.reduce((sum, layer) => sum + layer.total, 0);
  return total === 0 ? "" : `: ${mib(current)} of ${mib(total)} MiB`;
}

function mib(bytes: number): string {
  return (bytes / 1024 / 1024).toFixed(1);
}

/** The engine's answer to a pull: one JSON object a line. */
async function* eventsOf(stream: NodeJS.ReadableStream): AsyncGenerator<PullEvent> {
  let rest = "";
  for await (const chunk of stream) {
    const lines = (rest + chunk.toString()).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) if (line.trim() !== "") yield JSON.parse(line) as PullEvent;
  }
  if (rest.trim() !== "") yield JSON.parse(rest) as PullEvent;
}
