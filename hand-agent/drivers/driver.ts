/**
 * What a driver promises. A driver knows one kind of hand; everything above it (tools, executions, tunnel) knows only
 * this file. All drivers pass the suite in `test/contract/driver-contract.ts`.
 *
 * Order of calls. `probe` comes first and may be called again at any time. `provision` makes a hand and resolves when
 * it takes work. `recover` takes the `handle` of a hand made earlier, also by an agent that has died since, and gives
 * the hand back or says "gone". After `destroy` (or `park`) a `Hand` object takes no more calls.
 *
 * What runs concurrently. Hands are independent of each other. On one hand every primitive may run beside every other,
 * except that nothing may be started while `destroy` or `park` runs. Bytes of one process never delay another.
 *
 * Idempotency. `provision` with the id of a hand that exists returns that hand, never a second one. `destroy` and
 * `park` may be repeated. `recover` may be repeated; while the hand is live it returns the same object.
 *
 * Cleanup. A `provision` or `recover` that fails or is aborted leaves nothing running; files of a hand that had been
 * there before stay. `destroy` works after a failed `provision`: `Driver.discard(handId)` removes whatever is left of
 * a hand by its id alone. Whoever reads a `HandPipe`, or the output of a process, must read it to its end or abandon it.
 *
 * Ownership (X4). Every process started for a call carries the call's id, and so do its descendants, however they
 * detach; `callProcesses` finds them and `killCall` ends them.
 *
 * Paths are absolute paths as a process inside the hand sees them. Files are only reached below `roots`; a path whose
 * symbolic links lead elsewhere is refused with `outside`, also when links change while the call runs.
 *
 * Optional groups (`park`, later `snapshot`, `screen`, …) exist only where `capabilities` declares them.
 */

import type { Clock } from "../../kit/clock.ts";
import type { TunnelledTraffic } from "../relay/relay.ts";
import type { ToolResult } from "../result.ts";

export type JsonValue =
  | null
  | boolean
  | number
  | string
  | readonly JsonValue[]
  | { readonly [name: string]: JsonValue };

/** A tool as the model sees it; data of the greeting, so that it is known before a hand exists. */
export interface ToolDefinition {
  readonly name: string;
  readonly description: string;
  /** A JSON Schema (draft 2020-12) of the input object. */
  readonly inputSchema: { readonly [name: string]: JsonValue };
}

export interface DriverCapabilities {
  /** Processes can be ended while the workspace stays; `recover` resumes it (H5). */
  readonly park: boolean;
  /** The limits of `HandLimits` that this driver really enforces. Asking for another one fails `provision`. */
  readonly limits: readonly (keyof HandLimits)[];
  /** What network a hand has: that of the agent's host, none, or the environment's choice. */
  readonly network: "host" | "none" | "configurable";
  /** Whether hands are made from images: takes `HandSpec.container`, and needs it. */
  readonly containers?: boolean;
  /** Whether hands may have `HandSpec.mounts`. */
  readonly mounts?: boolean;
  /**
   * Hands bring tools of their own (`Hand.callTool`) instead of those of the agent, and have neither processes of calls nor
   * files: `exec` and `openPipe` reject with `HandError`, file primitives with `FileError`. They are given no mounts.
   */
  readonly ownTools?: boolean;
}

export type ProbeResult =
  | {
      readonly available: true;
      /** A short name of what keeps the hand apart from its host, e.g. "bubblewrap+uid"; "none" where nothing does. */
      readonly isolation: string;
      /** One line for people: what it means, and what would be stronger. */
      readonly detail: string;
    }
  | { readonly available: false; readonly reason: string };

export interface HandLimits {
  readonly memoryBytes?: number;
  readonly cpus?: number;
  readonly processes?: number;
  /** Of temporary files, below /tmp. */
  readonly tmpBytes?: number;
}

/** Something put into the workspace before the first call. More kinds come with later drivers. */
export interface InlineResource {
  readonly kind: "inline";
  /** Relative to the work directory. */
  readonly path: string;
  readonly content: string | Uint8Array;
  readonly mode?: number;
}
export type HandResource = InlineResource;

/** A directory beside the workspace that the agent keeps: there when the hand is made, and as long as its files are. */
export interface MountSpec {
  /** Absolute, below /mnt. A mount lies in no other, unless that is a read-only one. */
  readonly path: string;
  /** Processes of the hand cannot change what is in it. */
  readonly readOnly: boolean;
  /** A hand is made without its mounts where none of them can be had and all are optional. */
  readonly optional?: boolean;
}

/** What a hand may reach. What a driver cannot keep is refused by `provision` with the reason, never ignored. */
export type HandNetwork =
  /** Nothing but itself. */
  | { readonly mode: "none" }
  /** These hosts alone, by name, through the agent's relay (docs/networking.md). Names, `*.example.com`, IPv4 addresses. */
  | {
      readonly mode: "limited";
      readonly allowedHosts: readonly string[];
      /** What the relay carries to the proxy. */
      readonly tunnels?: TunnelledTraffic;
    }
  | {
      readonly mode: "unrestricted";
      /** What a relay beside it carries to the proxy: git alone. */
      readonly tunnels?: TunnelledTraffic;
    };

export interface HandSpec {
  readonly handId: string;
  /** Non-secret variables for every process of the hand. Names match `[A-Za-z_][A-Za-z0-9_]*`. */
  readonly env?: Readonly<Record<string, string>>;
  readonly limits?: HandLimits;
  /** Without it, the driver's default. */
  readonly network?: HandNetwork;
  readonly resources?: readonly HandResource[];
  /** Asked for only where `capabilities` has it. */
  readonly mounts?: readonly MountSpec[];
  readonly container?: ContainerSpec;
  readonly warm?: WarmSpec;
  /** Told what a long provision is doing, in a few words for people. */
  readonly onProgress?: (detail: string) => void;
  /** Without it the hand is made whenever it is asked for. */
  readonly outsideTurn?: OutsideTurn;
}

/**
 * Does a long part of a provision that costs the machine little, such as a pull, while another hand is made. Resolves when
 * it is this one's turn again; rejects as the work does, or when the provision is aborted while it waits for its turn.
 */
export type OutsideTurn = <T>(work: () => Promise<T>) => Promise<T>;

/** For drivers whose hands are containers. */
export interface ContainerSpec {
  /** By name or digest. */
  readonly image: string;
  /** Where tools start; without it the driver's own directory. */
  readonly workdir?: string;
  /** A runtime that the engine knows by this name; without it the engine's default. */
  readonly runtime?: string;
  /** Gets an image that is missing; else that is an error. */
  readonly pull: boolean;
  /** Commands that install packages into the image, as root and with the engine's network; once for the same image and text. */
  readonly packages?: string;
}

/** Hands that a driver makes ahead, one of which becomes the next hand of the same spec. Drivers without a pool ignore it. */
export interface WarmSpec {
  readonly size: number;
  readonly maxAgeMs: number;
  /** What is done once in each of them. Two specs are the same only if this text is. */
  readonly setup: { readonly key: string; run(hand: Hand, signal: AbortSignal): Promise<void> };
}

export interface Driver {
  readonly name: string;
  readonly capabilities: DriverCapabilities;
  readonly tools: readonly ToolDefinition[];
  /** Provisions at once that the machine bears, at least 1, unless the agent's setting says else; without it any number. */
  readonly provisionsAtOnce?: number;
  /** Whether this machine can run such hands, found out by trying. Never rejects. */
  probe(): Promise<ProbeResult>;
  /** Names that environments may give to images that the machine has, at most 1000 of at most 512 characters. May reject. */
  images?(): Promise<string[]>;
  /** Rejects with `HandError` when the hand cannot be made. */
  provision(spec: HandSpec, signal?: AbortSignal): Promise<Hand>;
  /** "gone" only when the workspace is known to be gone; a failure that may pass rejects instead (R16). */
  recover(handle: JsonValue, signal?: AbortSignal): Promise<Hand | "gone">;
  /** Ends and removes whatever is left of this hand, also after a failed provision. Idempotent. */
  discard(handId: string): Promise<DestroyReport>;
  /** The ids of all hands whose workspaces this driver holds, live or not. */
  listHandIds(): Promise<string[]>;
  /** The agent stops: what the driver keeps besides hands is removed. Its hands are parked by then. */
  close?(): Promise<void>;
}

export interface Hand {
  readonly id: string;
  /** What `recover` needs; small, without secrets, readable by later versions of the same driver. */
  readonly handle: JsonValue;
  readonly isolation: string;
  /** Where tools and new processes start. */
  readonly workdir: string;
  /** Where whole outputs are kept; one of `roots`. */
  readonly outputsDir: string;
  /** The directories that file primitives reach. */
  readonly roots: readonly string[];
  /** Undefined without `HandSpec.mounts`. */
  readonly mounts?: HandMounts;
  /** True for a hand that came back by `recover` without its processes: the workspace is old, the shell new. */
  readonly resumed: boolean;
  /** True when `WarmSpec.setup` has run in it. */
  readonly isSetUp?: boolean;
  /** Resolves with the reason when somebody else has removed the workspace; never otherwise (H2). */
  readonly lost?: Promise<string>;

  /**
   * Only if `capabilities.ownTools`: runs one of the driver's tools. Bounds its own time, ends within 3 s of the signal, and
   * whatever happens is a result; rejects for bugs alone. Calls run side by side.
   */
  callTool?(call: OwnToolCall): Promise<ToolResult>;

  exec(spec: ExecSpec, signal?: AbortSignal): Promise<RunningProcess>;
  /** A fresh pipe out of the hand, to be opened for writing once, by a process of this call (X6). */
  openPipe(callId: string): Promise<HandPipe>;

  /** Follows links. Rejects with `FileError`. */
  stat(path: string): Promise<FileStat>;
  /** Bytes `offset` to the end, in chunks of at most 64 KiB. Regular files only. */
  readFile(path: string, options?: { offset?: number; signal?: AbortSignal }): AsyncIterable<Uint8Array>;
  /** All or nothing: a temporary file beside it is renamed over `path`. Makes missing parents (0700); keeps an existing file's mode. */
  writeFile(
    path: string,
    content: Uint8Array | AsyncIterable<Uint8Array>,
    options?: { mode?: number; signal?: AbortSignal },
  ): Promise<{ bytes: number }>;
  /** Makes the directory and its missing parents, 0700. An existing one is no error. */
  mkdir(path: string): Promise<void>;
  rename(from: string, to: string): Promise<void>;
  /** Removes a file or link; a missing one is no error. */
  remove(path: string): Promise<void>;
  /** Where the link at `path` leads, as it is written there. `not_found` when there is none. Without it, copies leave links out. */
  readLink?(path: string): Promise<string>;
  /** Makes a symbolic link, wherever that leads. What is there already is `failed`. Without it, copies of links are refused. */
  makeLink?(path: string, target: string): Promise<void>;
  /** Permission bits of a file or directory that is there; links are followed. Without it, copies keep no modes of directories. */
  setMode?(path: string, mode: number): Promise<void>;
  /** Everything below `path`, without following links, parents before children. */
  walk(path: string, options?: WalkOptions): AsyncIterable<WalkEntry>;

  /** Living processes of one call, or of the whole hand. */
  callProcesses(callId?: string): Promise<ProcessInfo[]>;
  /**
   * CPU time in milliseconds that the call's processes have used, with that of their children that have ended. Only its
   * growth means something. Left out, or undefined, where the driver does not know: such a call is never taken for stalled.
   */
  callCpuMs?(callId: string): Promise<number | undefined>;
  /** SIGKILLs all processes of the call within `withinMs` and says which are left. `also` is a process to end with it. */
  killCall(
    callId: string,
    options: { withinMs: number; also?: RunningProcess },
  ): Promise<{ left: ProcessInfo[] }>;

  /** Only if `capabilities.park`: ends all processes, keeps the files; `recover(handle)` resumes. */
  park?(): Promise<DestroyReport>;
  destroy(): Promise<DestroyReport>;
}

/**
 * The agent's own way to a hand's mounts, also to read-only ones; paths are those of the specs. The hand's own file
 * primitives reach them too, and are refused with `permission` where a mount is read-only.
 */
export interface HandMounts {
  readonly files: MountFiles;
  /** Whether processes of the hand are really kept from changing read-only mounts; false where they are not isolated. */
  readonly areKept: boolean;
  /** Mounts that are empty because they were made when the hand was made or came back: somebody may have removed them. */
  readonly made: readonly string[];
  /** Where processes of the hand find this path: there itself, but where they see the host's directories. */
  seenAt(path: string): string;
}

export type MountFiles = Pick<
  Hand,
  "stat" | "readFile" | "writeFile" | "mkdir" | "rename" | "remove" | "walk"
> & {
  setMode(path: string, mode: number): Promise<void>;
  /** Removes a directory if nothing is in it. False when there is none, or something in it. */
  removeEmpty(path: string): Promise<boolean>;
  /** Has the file, made if missing, end with these bytes from `offset` on; programs that have it open see it. */
  writeFrom(path: string, offset: number, bytes: Uint8Array, mode: number): Promise<void>;
};

/** A call of a tool that the hand brings itself. */
export interface OwnToolCall {
  readonly name: string;
  readonly input: Readonly<Record<string, unknown>>;
  /** 0 leaves it to the driver. */
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
  /** Output while it comes. The tool goes on when the promise resolves. */
  readonly onOutput: (chunk: Uint8Array) => void | Promise<void>;
  readonly clock: Clock;
}

export interface DestroyReport {
  /** Processes that did not die within the bound. */
  readonly left: readonly ProcessInfo[];
}

export interface ExecSpec {
  readonly argv: readonly [string, ...string[]];
  /** Default: the work directory. */
  readonly cwd?: string;
  /** Added to the hand's own variables. */
  readonly env?: Readonly<Record<string, string>>;
  /** The call that owns the process. */
  readonly callId?: string;
  /** Without it standard input is /dev/null. */
  readonly stdin?: boolean;
}

export interface ExitStatus {
  /** As a shell reports it: 0–255, 128+n after signal n, 127 when the program was not found. */
  readonly code: number;
}

export interface RunningProcess {
  /** The process id as seen inside the hand. */
  readonly pid: number;
  /** Resolves when the bytes are handed over; fails when there is no standard input or the process is gone. */
  write(data: string | Uint8Array): Promise<void>;
  endInput(): void;
  readonly stdout: HandPipe;
  readonly stderr: HandPipe;
  /** Rejects with `HandError` when the sandbox ended under it. */
  readonly exit: Promise<ExitStatus>;
  kill(): Promise<void>;
}

/** A one-way pipe from the hand to the agent. At most 256 KiB are buffered; then the writer waits. */
export interface HandPipe {
  /** Where a process inside the hand opens it. */
  readonly path: string;
  /** To be read once. Ends after `finish` (or when all writers closed it), fails never. */
  readonly chunks: AsyncIterable<Uint8Array>;
  /**
   * The writer in the foreground is done: what had been written until now is still yielded, then `chunks` ends. What
   * others write later is read and dropped, so that they neither block nor die. Says whether somebody still holds it,
   * or may: whoever needs to know looks at the call's processes.
   */
  finish(): { held: boolean } | Promise<{ held: boolean }>;
  /** Drops everything from now on. */
  abandon(): void;
}

export interface FileStat {
  /** The path with all links resolved. */
  readonly path: string;
  readonly type: "file" | "directory" | "other";
  readonly size: number;
  readonly mtimeMs: number;
  readonly mode: number;
}

export interface WalkOptions {
  /** Names of directories and files that are left out. */
  readonly skip?: ReadonlySet<string>;
  /** How deep; children of `path` have depth 1. Default 40. */
  readonly maxDepth?: number;
  readonly signal?: AbortSignal;
}

export interface WalkEntry {
  readonly path: string;
  readonly type: "file" | "directory" | "symlink" | "other";
}

export interface ProcessInfo {
  /** As seen by the agent. */
  readonly pid: number;
  readonly command: string;
  readonly callId?: string;
}

export type FileErrorCode =
  | "not_found"
  | "outside"
  | "not_a_directory"
  | "is_a_directory"
  | "not_a_file"
  | "permission"
  | "too_many_links"
  | "no_space"
  | "failed";

/** A file primitive did not do it. Tools turn the code into their own words. */
export class FileError extends Error {
  override readonly name = "FileError";
  readonly code: FileErrorCode;
  readonly path: string;

  constructor(code: FileErrorCode, path: string, message: string, options?: ErrorOptions) {
    super(message, options);
    this.code = code;
    this.path = path;
  }
}

/** The hand itself cannot do it: it could not be made, or it has ended. The text may be shown to the model. */
export class HandError extends Error {
  override readonly name = "HandError";
}
