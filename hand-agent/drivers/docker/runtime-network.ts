/**
 * Which network a container's runtime gives to it. Relays and rules are put into the network namespace that the engine made;
 * a sandboxed kernel with a network stack of its own (gVisor's usual way) neither sees nor obeys what is there.
 */
import type { Engine } from "./engine.ts";

/** Runtimes whose containers use the kernel's network, by the names that engines know them by. */
const OF_THE_KERNEL = /^(io\.containerd\.)?(runc|crun|youki)\b/;

/** As `docker info` tells it. */
export interface EngineRuntime {
  readonly path?: string;
  readonly runtimeArgs?: readonly string[] | null;
}

interface EngineInfo {
  readonly DefaultRuntime?: string;
  readonly Runtimes?: Readonly<Record<string, EngineRuntime>> | null;
}

export type RuntimeNetwork =
  /** The namespace's own, and nothing else. */
  | "namespace"
  /** gVisor that passes network calls on to the kernel, in the container's namespace. */
  | "passed_on"
  /** One that nobody outside reaches, or nobody knows. */
  | "own";

/** Rejects with EngineError. `name`: undefined for the engine's default. Asked each time: engines are set up anew. */
export async function networkOfRuntime(engine: Engine, name: string | undefined): Promise<RuntimeNetwork> {
  if (name !== undefined && OF_THE_KERNEL.test(name)) return "namespace";
  const info = (await engine.ask("describe itself", (docker) => docker.info())) as EngineInfo;
  const runtime = name ?? info.DefaultRuntime ?? "runc";
  return OF_THE_KERNEL.test(runtime) ? "namespace" : networkOf(info.Runtimes?.[runtime]);
}

export function networkOf(runtime: EngineRuntime | undefined): RuntimeNetwork {
  const program = runtime?.path?.split("/").at(-1) ?? "";
  if (OF_THE_KERNEL.test(program)) return "namespace";
  const network = runtime?.runtimeArgs?.findLast((arg) => /^--?network=/.test(arg))?.split("=")[1];
  return program === "runsc" && network === "host" ? "passed_on" : "own";
}
