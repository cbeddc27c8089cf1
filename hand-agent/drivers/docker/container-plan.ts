/** A hand's container as the engine is asked for it: what is decided once, as data. */
import { createHash } from "node:crypto";
import type { ContainerCreateOptions } from "dockerode";
import type { HandLimits, HandNetwork, MountSpec } from "../driver.ts";
import { MNT } from "../mounted-dirs.ts";
import { FIRST_SCRIPT, LANE_SCRIPT } from "./lane-script.ts";

/** Labels of everything that the driver makes on an engine. */
export const LABELS = {
  /** Which agent, by the id in its data directory; nobody else touches it. */
  agent: "tendon.agent",
  installation: "tendon.installation",
  /** Names what belongs to one hand; told to nobody who could guess it. */
  unit: "tendon.unit",
} as const;

/** In the environment of a container's first process. */
export const UNIT_VARIABLE = "TENDON_UNIT";

/** Always there; the workspace's volume is mounted on it. */
export const HAND_DIR = "/hand";
export const OUTPUTS_DIR = `${HAND_DIR}/outputs`;
export const DEFAULT_WORKDIR = `${HAND_DIR}/work`;
/** For named pipes: in memory, the hand's own. */
export const PIPES_DIR = "/run/tendon-hand";

const MIB = 1024 * 1024;
/** Where an environment says nothing. */
export const DEFAULT_LIMITS = { memoryBytes: 2048 * MIB, processes: 1024, tmpBytes: 512 * MIB } as const;
const PIPES_BYTES = MIB;
/** Processes that the agent has in a container: lanes, and what they run. They are not taken from the hand's limit. */
const OUR_PROCESSES = 8;
/** Above all that programs of the hand may start, so that a hand that has used up its processes can still be helped. */
const SPARE_PROCESSES = 32;
/** Before others when the machine has no memory left. */
const OOM_SCORE = 500;
/** Numbers that images rarely give to users, mapped also where an engine remaps 65,536 of them. */
const FIRST_UID = 20_000;
const UID_COUNT = 40_000;

/** What a container is made from; kept in the hand's record, so that it can be made again around its workspace. */
export interface ContainerRecipe {
  readonly image: string;
  readonly workdir: string;
  readonly runtime?: string;
  readonly env: Readonly<Record<string, string>>;
  readonly limits: HandLimits;
  readonly network: HandNetwork;
  /** Absent for none. */
  readonly mounts?: readonly MountSpec[];
}

export interface PlanOptions {
  readonly name: string;
  readonly unit: string;
  readonly agentId: string;
  readonly installationId: string;
  /** Of the engine; "none" for hands without a way out and for those behind a relay. */
  readonly networkName: string;
  /** Stand under the recipe's own. */
  readonly extraEnv: Readonly<Record<string, string>>;
}

/** A hand's user: a number of its own, so that limits per user count for one hand alone. */
export function uidOf(unit: string): number {
  return FIRST_UID + (createHash("sha256").update(unit).digest().readUInt32BE() % UID_COUNT);
}

/** The volumes of a unit by where they are mounted. A working directory elsewhere has one of its own. */
export function volumesOf(
  unit: string,
  workdir: string,
): { readonly name: string; readonly target: string }[] {
  const volumes = [{ name: `tendon-${unit}`, target: HAND_DIR }];
  if (!`${workdir}/`.startsWith(`${HAND_DIR}/`))
    volumes.push({ name: `tendon-${unit}-work`, target: workdir });
  return volumes;
}

/** The volume that is /mnt in hands with mounts. */
export function mountsVolumeOf(unit: string): string {
  return `tendon-${unit}-mnt`;
}

/** What programs of the hand are told by their user's limit; the container's own is a little higher. */
export function processLimitOf({ limits }: ContainerRecipe): number {
  return (limits.processes ?? DEFAULT_LIMITS.processes) + OUR_PROCESSES;
}

export function planContainer(recipe: ContainerRecipe, options: PlanOptions): ContainerCreateOptions {
  const { workdir, limits } = recipe;
  const uid = uidOf(options.unit);
  const memory = limits.memoryBytes ?? DEFAULT_LIMITS.memoryBytes;
  const tmp = limits.tmpBytes ?? DEFAULT_LIMITS.tmpBytes;
  return {
    name: options.name,
    Image: recipe.image,
    Entrypoint: ["/bin/sh", "-c", FIRST_SCRIPT, "tendon-first"],
    Cmd: [LANE_SCRIPT, workdir, OUTPUTS_DIR],
    User: `${uid}:${uid}`,
    WorkingDir: "/",
    Env: Object.entries({
      HOME: workdir,
      USER: "hand",
      LOGNAME: "hand",
      LANG: "C.UTF-8",
      TERM: "dumb",
      TMPDIR: "/tmp",
      ...options.extraEnv,
      ...recipe.env,
      TENDON_LANE: "1",
      [UNIT_VARIABLE]: options.unit,
    }).map(([name, value]) => `${name}=${value}`),
    Labels: labelsOf(options),
    OpenStdin: true,
    StdinOnce: false,
    Healthcheck: { Test: ["NONE"] },
    HostConfig: {
      NetworkMode: options.networkName,
      Mounts: mountedVolumes(recipe, options.unit).map(({ name, target }) => ({
        Type: "volume",
        Source: name,
        Target: target,
        VolumeOptions: {
          // What an image has at /mnt is not the hand's.
          NoCopy: target === MNT,
          Labels: labelsOf(options),
          DriverConfig: { Name: "local", Options: {} },
        },
      })),
      Tmpfs: {
        // Its user's own: runtimes give it the mode that the image's /tmp has, whatever is asked.
        "/tmp": `rw,nosuid,nodev,exec,mode=1777,uid=${uid},gid=${uid},size=${tmp}`,
        [PIPES_DIR]: `rw,nosuid,nodev,noexec,mode=0700,uid=${uid},gid=${uid},size=${PIPES_BYTES}`,
      },
      ReadonlyRootfs: true,
      CapDrop: ["ALL"],
      SecurityOpt: ["no-new-privileges:true"],
      Privileged: false,
      Memory: memory,
      MemorySwap: memory,
      PidsLimit: processLimitOf(recipe) + SPARE_PROCESSES,
      ...(limits.cpus === undefined ? {} : { NanoCpus: Math.round(limits.cpus * 1e9) }),
      ...(recipe.runtime === undefined ? {} : { Runtime: recipe.runtime }),
      OomScoreAdj: OOM_SCORE,
      Ulimits: [{ Name: "core", Soft: 0, Hard: 0 }],
      IpcMode: "private",
      RestartPolicy: { Name: "no" },
      // What a hand says goes to the agent alone, not to files of the engine.
      LogConfig: { Type: "none", Config: {} },
    },
  };
}

function mountedVolumes({ workdir, mounts }: ContainerRecipe, unit: string) {
  const volumes = volumesOf(unit, workdir);
  return mounts === undefined ? volumes : [...volumes, { name: mountsVolumeOf(unit), target: MNT }];
}

export function labelsOf({
  agentId,
  installationId,
  unit,
}: Omit<PlanOptions, "networkName" | "extraEnv" | "name">) {
  return { [LABELS.agent]: agentId, [LABELS.installation]: installationId, [LABELS.unit]: unit };
}
