/** Images that an environment names: there, or pulled where it says so. */
import type { Clock } from "../../../kit/clock.ts";
import { HandError } from "../driver.ts";
import { type Engine, EngineError } from "./engine.ts";
import { type RegistryCredentials, registryOf } from "./registry-credentials.ts";

/** Engines tell of every layer many times a second. */
const TELL_EVERY_MS = 500;

interface PullEvent {
  readonly id?: string;
  readonly status?: string;
  readonly error?: string;
  readonly progressDetail?: { readonly current?: number; readonly total?: number };
}

export interface PullOptions {
  /** Whose credentials to pull with. */
  readonly credentials: RegistryCredentials;
  readonly onProgress: (detail: string) => void;
  readonly clock: Clock;
  readonly signal: AbortSignal | undefined;
}

/** Rejects with HandError. Pulls of one image side by side are the engine's to merge. */
export async function pullImage(engine: Engine, image: string, options: PullOptions): Promise<void> {
  const { onProgress, clock, signal, credentials } = options;
  onProgress(`pulling the image ${image}`);
  const auth = await credentials.forImage(image);
  const reference = /[:@][^/]*$/.test(image) ? image : `${image}:latest`;
  const stream = await engine
    .ask(`pull the image ${image}`, (docker) => docker.pull(reference, auth && { authconfig: auth }))
    .catch((error: unknown) => {
      throw withAdvice(error, image, auth !== undefined);
    });
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

/** Registries say the same of images that they do not have and of those that they do not show. */
function withAdvice(error: unknown, image: string, hadCredentials: boolean): unknown {
  if (
    !(error instanceof EngineError) ||
    !/unauthorized|denied|auth credentials|forbidden/i.test(error.message)
  )
    return error;
  const registry = registryOf(image);
  const advice = hadCredentials
    ? `the hand agent's credentials for ${registry} were sent`
    : `the hand agent has no credentials for ${registry}; TENDON_HAND_AGENT_REGISTRY_AUTH_FILE names a file with them`;
  return new EngineError(`${error.message} (${advice})`, error.status, { cause: error });
}

/** An image that came from no registry has no digest there: what stands for it is the engine's own id of it. */
export async function imageById(engine: Engine, image: string): Promise<string | undefined> {
  const [, id] = /@(sha256:[0-9a-f]{64})$/.exec(image) ?? [];
  if (id === undefined) return undefined;
  const found = await engine.find("look for the image", (docker) => docker.getImage(id).inspect());
  return found?.Id === id ? id : undefined;
}

/** The protocol's bounds. */
const MAX_NAMES = 1_000;
const MAX_NAME_CHARS = 512;

/** Names that environments may give to the engine's images; of too many, the plain ones stay. Rejects with EngineError. */
export async function imageNames(engine: Engine): Promise<string[]> {
  return namesOf(await engine.ask("list images", (docker) => docker.listImages()));
}

export interface ListedImage {
  readonly Id: string;
  readonly RepoTags?: readonly string[] | null | undefined;
  readonly RepoDigests?: readonly string[] | null | undefined;
}

export function namesOf(images: readonly ListedImage[]): string[] {
  const isNamed = (name: string) => !name.includes("<none>");
  const tags = images.flatMap(({ RepoTags }) => (RepoTags ?? []).filter(isNamed));
  const latest = tags.filter((tag) => tag.endsWith(":latest")).map((tag) => tag.slice(0, -":latest".length));
  const digests = images.flatMap(({ RepoDigests }) => (RepoDigests ?? []).filter(isNamed));
  const ids = images.flatMap(({ Id: id, RepoTags }) => [
    id,
    ...(RepoTags ?? []).filter(isNamed).map((tag) => `${tag.replace(/:[^:/]*$/, "")}@${id}`),
  ]);
  const plain = [...tags, ...latest, ...digests];
  const names = new Set([...plain, ...plain.flatMap(hubName), ...ids]);
  return [...names].filter((name) => name.length <= MAX_NAME_CHARS).slice(0, MAX_NAMES);
}

/** An engine lists images of Docker Hub without its name, and takes them with it too. */
function hubName(name: string): string[] {
  const [first = "", ...rest] = name.split("/");
  if (rest.length === 0) return [`docker.io/library/${name}`];
  return /[.:]/.test(first) || first === "localhost" ? [] : [`docker.io/${name}`];
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
