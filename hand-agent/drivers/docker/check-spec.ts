/** What the docker driver takes from its caller, checked before anything is made. */
import { posix } from "node:path";
import { HandError, type HandSpec, type JsonValue } from "../driver.ts";
import { checkMounts, MNT } from "../mounted-dirs.ts";
import { type ContainerRecipe, DEFAULT_WORKDIR, HAND_DIR, OUTPUTS_DIR, PIPES_DIR } from "./container-plan.ts";
import { HAND_ID } from "./hand-records.ts";

const ENV_NAME = /^[A-Za-z_][A-Za-z0-9_]*$/;
/** The engine refuses less. */
const MIN_MEMORY_BYTES = 6 * 1024 * 1024;
/** First process, first lane, a shell with its lane, and a few for calls. */
const MIN_PROCESSES = 24;
/** Where the kernel or the driver has something of its own. */
const TAKEN = ["/proc", "/sys", "/dev", "/run", "/tmp", OUTPUTS_DIR, PIPES_DIR];

export function checkDockerSpec(spec: HandSpec): void {
  if (!HAND_ID.test(spec.handId)) throw new HandError("the hand's id is not usable as a container's name");
  for (const [name, value] of Object.entries(spec.env ?? {})) {
    if (!ENV_NAME.test(name) || name.startsWith("TENDON_"))
      throw new HandError(`env: "${name}" is not an allowed name`);
    if (value.includes("\0")) throw new HandError(`env: the value of ${name} holds a NUL character`);
  }
  const { memoryBytes, processes } = spec.limits ?? {};
  if (memoryBytes !== undefined && memoryBytes < MIN_MEMORY_BYTES)
    throw new HandError(`limits: memory_bytes must be at least ${MIN_MEMORY_BYTES}`);
  if (processes !== undefined && processes < MIN_PROCESSES)
    throw new HandError(`limits: pids must be at least ${MIN_PROCESSES}`);
  const image = spec.container?.image ?? "";
  if (image === "") throw new HandError("the environment names no image, which the driver docker needs");
  if (/[\s\0]/.test(image) || image.startsWith("-")) throw new HandError(`"${image}" is no image's name`);
  checkMounts(spec.mounts ?? []);
  const workdir = spec.container?.workdir ?? DEFAULT_WORKDIR;
  checkWorkdir(workdir);
  if (spec.mounts !== undefined && `${workdir}/`.startsWith(`${MNT}/`))
    throw new HandError(
      `container.workdir cannot be below ${MNT} in a hand with memory stores or its session's log`,
    );
}

function checkWorkdir(workdir: string): void {
  if (!posix.isAbsolute(workdir) || posix.normalize(workdir) !== workdir || workdir === "/")
    throw new HandError("container.workdir must be an absolute path without . and .., and not / itself");
  if (workdir === HAND_DIR) throw new HandError(`container.workdir cannot be ${HAND_DIR}`);
  const taken = TAKEN.find((path) => `${workdir}/`.startsWith(`${path}/`));
  if (taken !== undefined) throw new HandError(`container.workdir cannot be below ${taken}`);
}

export function recipeOf(spec: HandSpec): ContainerRecipe {
  const { container, env = {}, limits = {}, network = { mode: "none" }, mounts } = spec;
  return {
    image: container?.image ?? "",
    workdir: container?.workdir || DEFAULT_WORKDIR,
    ...(container?.runtime ? { runtime: container.runtime } : {}),
    env,
    limits,
    network,
    ...(mounts === undefined ? {} : { mounts }),
  };
}

export function handIdOf(handle: JsonValue): string {
  const handId = (handle as { handId?: unknown } | null)?.handId;
  if (typeof handId !== "string" || !HAND_ID.test(handId))
    throw new HandError("not a handle of the docker driver");
  return handId;
}
