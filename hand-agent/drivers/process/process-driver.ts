/**
 * The driver that runs hands as processes of this machine, as strongly kept apart as the machine allows.
 *
 * A hand's directory is seen at the same path inside and outside. The network is the host's unless the hand's spec says
 * less. An agent that starts again resumes its hands by `recover`: files stay, processes are gone.
 */
import { randomBytes } from "node:crypto";
import { chmod, mkdir, readdir } from "node:fs/promises";
import { homedir } from "node:os";
import { dirname, join, resolve } from "node:path";
import type { Clock } from "../../../kit/clock.ts";
import { messageOf } from "../../../kit/errors.ts";
import type { Logger } from "../../../kit/log.ts";
import type { Relays } from "../../relay/relay.ts";
import {
  type DestroyReport,
  type Driver,
  type DriverCapabilities,
  type Hand,
  HandError,
  type HandSpec,
  type JsonValue,
  type ProbeResult,
  type ToolDefinition,
} from "../driver.ts";
import { checkMounts, prepareMounts } from "../mounted-dirs.ts";
import { ProcessTable } from "../process-table.ts";
import { putResources } from "../put-resources.ts";
import { checkSpec, HAND_ID, handIdOf } from "./check-spec.ts";
import {
  findHandDirs,
  forgetElsewhere,
  type HandDirs,
  type HandRecord,
  mendRunDir,
  pointElsewhere,
  prepareDirs,
  readRecord,
  removeDirs,
  writeRecord,
} from "./hand-dirs.ts";
import { plannedMounts } from "./hand-mounts.ts";
import { checkNetwork, networkVariables, openNetwork, restrictedNetwork } from "./hand-network.ts";
import { InitChannel } from "./init-channel.ts";
import { INIT_SCRIPT } from "./init-script.ts";
import { hasPidNamespace, type Identity, type IsolationMode, launchArgv } from "./isolation.ts";
import { type Choice, chooseIsolation, NOT_INSTALLED, type Trial, type Way } from "./isolation-choice.ts";
import { ProcessHand } from "./process-hand.ts";
import { planSandbox } from "./sandbox-plan.ts";
import { checkPlace, makePlace, SYSTEM_ROOTS, systemPlaces, systemRootOf } from "./system-folder.ts";

export interface ProcessDriverOptions {
  /** Hands live below `<dataDir>/hands`; the rest of it is hidden from them. */
  readonly dataDir: string;
  /** Where files go that a hand's own uid could not reach there. Default: SYSTEM_ROOTS. */
  readonly systemRoots?: readonly string[];
  /** More that no hand may see: key files, socket directories. Homes are hidden anyway. */
  readonly hiddenPaths?: readonly string[];
  readonly clock: Clock;
  readonly log: Logger;
  /** "auto" takes the strongest that works; as root never "none", which must be asked for. */
  readonly isolation?: "auto" | IsolationMode;
  /** The hands' PATH. */
  readonly path?: string;
  readonly tools: readonly ToolDefinition[];
  readonly relays?: Relays;
}

const DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/** Numbers that distributions leave free; the second range is for machines that map only 65,536. */
const UID_RANGES = [
  { first: 1_879_048_192, count: 268_000_000 },
  { first: 50_000, count: 10_000 },
] as const;
const LEFTOVERS_WITHIN_MS = 3_000;

export class ProcessDriver implements Driver {
  readonly name = "process";
  readonly capabilities: DriverCapabilities = {
    park: true,
    limits: [],
    network: "configurable",
    mounts: true,
  };
  readonly tools: readonly ToolDefinition[];
  private readonly options: ProcessDriverOptions;
  private readonly handsDir: string;
  private readonly asRoot = process.getuid?.() === 0;
  private readonly live = new Map<string, Promise<ProcessHand>>();
  /** Hands on their way out: who asks for one of them waits until it is over. */
  private readonly ending = new Map<string, Promise<unknown>>();
  private choice: Promise<Choice> | undefined;

  constructor(options: ProcessDriverOptions) {
    this.options = options;
    this.tools = options.tools;
    this.handsDir = join(resolve(options.dataDir), "hands");
  }

  async probe(): Promise<ProbeResult> {
    this.choice = this.choose();
    const choice = await this.choice;
    if ("reason" in choice) return { available: false, reason: choice.reason };
    return { available: true, isolation: this.isolationName(choice.way.mode), detail: choice.detail };
  }

  async provision(spec: HandSpec, signal?: AbortSignal): Promise<Hand> {
    await this.ending.get(spec.handId);
    const living = this.live.get(spec.handId);
    if (living) return living;
    return this.keep(spec.handId, async () => {
      checkSpec(spec);
      checkMounts(spec.mounts ?? []);
      const dirs = await findHandDirs(this.handsDir, spec.handId);
      const before = await readRecord(dirs);
      if (before && (await hasFiles(dirs))) return this.resume(before, dirs, signal);
      if (before || dirs.files !== dirs.base) await this.removeLeftovers(spec.handId);
      try {
        const way = await this.way();
        const network = restrictedNetwork(spec.network);
        checkNetwork(network, way.mode);
        const { env = {}, mounts } = spec;
        const hand = await this.create(spec.handId, way, { env, network, mounts }, signal);
        await putResources(hand, spec, signal);
        return hand;
      } catch (error) {
        await this.removeLeftovers(spec.handId);
        throw error;
      }
    });
  }

  async recover(handle: JsonValue, signal?: AbortSignal): Promise<Hand | "gone"> {
    const handId = handIdOf(handle);
    await this.ending.get(handId);
    const dirs = await findHandDirs(this.handsDir, handId);
    const record = await readRecord(dirs);
    const isThere = record !== undefined && (await hasFiles(dirs));
    const living = this.live.get(handId);
    if (living) return living;
    if (!isThere) return "gone";
    return this.keep(handId, () => this.resume(record, dirs, signal));
  }

  async discard(handId: string): Promise<DestroyReport> {
    if (!HAND_ID.test(handId)) return { left: [] };
    const living = await this.live.get(handId)?.catch(() => undefined);
    return living ? living.destroy() : this.removeLeftovers(handId);
  }

  async listHandIds(): Promise<string[]> {
    const names = await readdir(this.handsDir).catch(() => []);
    return names.filter((name) => HAND_ID.test(name) && !name.startsWith(PROBE_PREFIX));
  }

  /** Ends the processes of all hands and keeps their files: what an agent does before it stops. */
  async parkAll(): Promise<void> {
    await Promise.all(
      [...this.live.values()].map(async (hand) => (await hand.catch(() => undefined))?.park()),
    );
  }

  private async way(): Promise<Way> {
    this.choice ??= this.choose();
    const choice = await this.choice;
    if ("reason" in choice) throw new HandError(choice.reason);
    return choice.way;
  }

  private choose(): Promise<Choice> {
    return chooseIsolation({
      wanted: this.options.isolation ?? "auto",
      asRoot: this.asRoot,
      tryWay: (way) => this.tryWay(way),
      folderOf: systemRootOf,
    });
  }

  /** Makes a hand in this way and looks around from inside. */
  private async tryWay(way: Way): Promise<Trial> {
    const handId = PROBE_PREFIX + randomBytes(6).toString("hex");
    try {
      const hand = await this.create(handId, way, { env: {} }, undefined);
      const secret = join(this.handsDir, handId, "hand.json");
      const test =
        way.mode === "none" ? ": >probe" : `: >probe && ! : <'${secret}' && ! : >/usr/.tendon-probe`;
      const { exit, stdout } = await hand.exec({ argv: ["/bin/bash", "-c", test] });
      stdout.abandon();
      const { code } = await exit;
      await hand.destroy();
      if (code === 0) return { works: true, filesDir: dirname(hand.workdir) };
      return { works: false, reason: "a hand made in this way saw what it must not see" };
    } catch (error) {
      const isMissing = /spawn \S+ ENOENT/.test(messageOf(error));
      return { works: false, reason: isMissing ? NOT_INSTALLED : messageOf(error) };
    } finally {
      await this.removeLeftovers(handId).catch((err) => this.options.log.warn({ err }, "a probe left files"));
    }
  }

  private async create(
    handId: string,
    { mode, elsewhere }: Way,
    { env, network, mounts }: Pick<HandRecord, "env" | "network" | "mounts">,
    signal: AbortSignal | undefined,
  ): Promise<ProcessHand> {
    await mkdir(this.handsDir, { recursive: true, mode: 0o711 });
    await chmod(this.handsDir, 0o711);
    const dirs = elsewhere ? await this.makeElsewhere(handId) : await findHandDirs(this.handsDir, handId);
    const uid = await this.prepareWithUid(dirs, mode);
    const madeMounts = await prepareMounts(dirs.mnt, mounts ?? [], uid);
    const version = network === undefined ? 1 : 2;
    const record: HandRecord = { version, handId, mode, uid, env, network, mounts };
    await writeRecord(dirs, record);
    return this.open(record, dirs, { resumed: false, madeMounts }, signal);
  }

  private async makeElsewhere(handId: string): Promise<HandDirs> {
    const { systemRoots = SYSTEM_ROOTS, dataDir } = this.options;
    const dirs = await findHandDirs(this.handsDir, handId);
    const failures: string[] = [];
    for (const place of await systemPlaces(systemRoots, dataDir, handId)) {
      const moved = await pointElsewhere(dirs, place);
      try {
        await makePlace(place);
        return moved;
      } catch (error) {
        await forgetElsewhere(dirs);
        failures.push(messageOf(error));
      }
    }
    throw new HandError(failures.join(", ") || "there is none");
  }

  private async prepareWithUid(dirs: HandDirs, mode: IsolationMode): Promise<number | undefined> {
    if (!this.asRoot || mode === "none") {
      await prepareDirs(dirs, undefined);
      return undefined;
    }
    let failure: unknown;
    for (const { first, count } of UID_RANGES) {
      const uid = first + (randomBytes(4).readUInt32BE() % count);
      try {
        await prepareDirs(dirs, uid);
        return uid;
      } catch (error) {
        failure = error; // EINVAL: this number is not mapped here
      }
    }
    throw new HandError(`no uid of its own for the hand: ${messageOf(failure)}`);
  }

  private async resume(
    record: HandRecord,
    dirs: HandDirs,
    signal: AbortSignal | undefined,
  ): Promise<ProcessHand> {
    if (record.version !== 1 && record.version !== 2)
      throw new HandError("the hand was made by a newer version of the driver");
    if (this.asRoot && record.uid === undefined && this.options.isolation !== "none") {
      throw new HandError(
        "the hand has no uid of its own and would run as root; release it, or accept that with TENDON_HAND_AGENT_ISOLATION=none",
      );
    }
    await this.killLeftovers(record);
    await prepareDirs(dirs, record.uid);
    const madeMounts = await prepareMounts(dirs.mnt, record.mounts ?? [], record.uid);
    return this.open(record, dirs, { resumed: true, madeMounts }, signal);
  }

  private async open(
    record: HandRecord,
    dirs: HandDirs,
    { resumed, madeMounts }: { resumed: boolean; madeMounts: readonly string[] },
    signal: AbortSignal | undefined,
  ): Promise<ProcessHand> {
    const { handId, mode } = record;
    const uid = record.uid ?? process.getuid?.() ?? 0;
    const gid = record.uid ?? process.getgid?.() ?? 0;
    const identity: Identity = { asRoot: this.asRoot, uid, gid };
    const hand = new ProcessHand({
      id: handId,
      handle: { version: 1, handId },
      mode,
      isolation: this.isolationName(mode),
      identity,
      dirs,
      env: record.env,
      mounts: record.mounts ?? [],
      madeMounts,
      resumed,
      clock: this.options.clock,
      log: this.options.log,
      launch: (launchSignal) => this.launch(record, identity, dirs, launchSignal),
      onEnding: (end) => {
        this.live.delete(handId);
        const over = end.catch(() => {}).then(() => this.ending.delete(handId));
        this.ending.set(handId, over);
      },
      mendPipes: () => mendRunDir(dirs, record.uid),
      removeFiles: () => removeDirs(dirs),
    });
    try {
      await hand.start(signal);
      return hand;
    } catch (error) {
      await hand.park();
      throw error;
    }
  }

  private async launch(
    { handId, mode, network, mounts = [] }: HandRecord,
    identity: Identity,
    dirs: HandDirs,
    signal: AbortSignal | undefined,
  ): Promise<InitChannel> {
    const named = identity.asRoot && hasPidNamespace(mode);
    const plan = planSandbox({
      hiddenPaths: [
        resolve(this.options.dataDir),
        ...ownHome(),
        // Only while this hand itself lives there: an empty one may go while the sandbox is being made.
        ...(dirs.files === dirs.base ? [] : [systemRootOf(dirs.files)]),
        ...(this.options.hiddenPaths ?? []),
      ],
      writable: [dirs.work, dirs.outputs, dirs.run],
      mounts: plannedMounts(dirs, mounts),
      tmpDir: dirs.tmp,
      overlays: named
        ? ["passwd", "group"].map((name) => ({ from: join(dirs.etc, name), to: `/etc/${name}` }))
        : [],
    });
    const init = ["/bin/bash", "--noprofile", "--norc", "-c", INIT_SCRIPT, "tendon-init"];
    const ownNetwork = network !== undefined;
    const argv = launchArgv({ mode, identity, plan, mountPoint: dirs.mountPoint, ownNetwork, init });
    const { clock, relays } = this.options;
    const channel = await InitChannel.start(argv, {
      clock,
      env: { ...this.baseEnv(mode, dirs), ...networkVariables(network) },
      signal,
    });
    await openNetwork({ handId, network, channel, relays, signal });
    return channel;
  }

  /** Built from nothing: no variable of the agent reaches a hand. */
  private baseEnv(mode: IsolationMode, dirs: HandDirs): Record<string, string> {
    return {
      PATH: this.options.path ?? DEFAULT_PATH,
      HOME: dirs.work,
      USER: "hand",
      LOGNAME: "hand",
      LANG: "C.UTF-8",
      TERM: "dumb",
      TMPDIR: hasPidNamespace(mode) ? "/tmp" : dirs.tmp,
    };
  }

  private async removeLeftovers(handId: string): Promise<DestroyReport> {
    const dirs = await findHandDirs(this.handsDir, handId);
    const record = await readRecord(dirs).catch(() => undefined);
    const report = record ? await this.killLeftovers(record) : { left: [] };
    await removeDirs(dirs);
    return report;
  }

  /** Processes that an earlier life of this agent, or a failed start, has left behind. */
  private killLeftovers({ handId, mode, uid }: HandRecord): Promise<DestroyReport> {
    const scope =
      uid !== undefined && mode !== "none" ? ({ kind: "uid", uid } as const) : ({ kind: "marked" } as const);
    const table = new ProcessTable({ handId, scope, clock: this.options.clock });
    return table.kill(() => table.listAll(), LEFTOVERS_WITHIN_MS);
  }

  private isolationName(mode: IsolationMode): string {
    return this.asRoot && hasPidNamespace(mode) ? `${mode}+uid` : mode;
  }

  /** One object per hand: whoever asks while it is being made waits for the same one. */
  private keep(handId: string, make: () => Promise<ProcessHand>): Promise<ProcessHand> {
    const made = make();
    this.live.set(handId, made);
    made.catch(() => {
      if (this.live.get(handId) === made) this.live.delete(handId);
    });
    return made;
  }
}

const PROBE_PREFIX = "probe-";

/** Files elsewhere may be gone, e.g. with a /tmp that was emptied, and must still be ours. */
async function hasFiles(dirs: HandDirs): Promise<boolean> {
  return dirs.files === dirs.base || (await checkPlace(dirs.files));
}

/** A service's user may be no more than a number, in no file and without a home. */
function ownHome(): string[] {
  try {
    return [homedir()];
  } catch {
    return [];
  }
}
