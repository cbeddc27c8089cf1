/**
 * Pipes of calls: named pipes inside, each read by a lane that passes on what is written (X6). Named pipes are made ahead,
 * a batch at a time, so that a call waits for none.
 */
import { randomBytes } from "node:crypto";
import { posix } from "node:path";
import type { Clock } from "../../../kit/clock.ts";
import { HandError, type HandPipe } from "../driver.ts";
import { ContainerPipe } from "./container-pipe.ts";
import type { Lane, Reply } from "./lane.ts";
import type { LanePool } from "./lane-pool.ts";
import { quote } from "./lane-script.ts";

const BATCH = 64;
const LOW_STOCK = 24;
/** A pipe that its foreground is done with ends by itself at once, unless something in the background holds it. */
const END_BY_ITSELF_WITHIN_MS = 10;
/** For output on its way, where no mark could be put behind it. */
const UNMARKED_AFTER_MS = 200;
/** Pipes that background processes still hold, read and dropped inside. The oldest is let go beyond that. */
const MAX_HELD_PIPES = 64;

const CUT_NOTE = "\n[the connection into the container broke off: output from here on is lost]\n";

/** What a shell says that cannot start a program, or gets none in its limits: not the pipes' fault. */
const NO_PROCESS = /fork|resource|memory/i;
const REMOVED_NOTE =
  "\n[something in the hand removed or changed the pipe of this call's output: what is not here is lost]\n";

/** The hand's own programs spoiled the directory of its pipes; it is good again in a new container. */
export class PipesSpoiled extends HandError {
  constructor(dir: string) {
    super(
      `something in the hand removed or changed files in ${dir}, where the output of commands goes: this command did not run; ` +
        "the hand's container, with all that ran in it, is replaced for the next call, and the workspace stays",
    );
  }
}

export interface CallPipesOptions {
  readonly dir: string;
  readonly pool: LanePool;
  readonly order: (script: string) => Promise<Reply>;
  /** Whether the container still runs. */
  readonly isRunning: () => Promise<boolean>;
  readonly clock: Clock;
}

interface Reading {
  readonly path: string;
  readonly lane: Lane;
  /** What `finish` writes into the pipe to see how far it was read. */
  readonly mark: string;
  /** All of it was read: it has no writers any more, or its lane is gone. */
  isOver: boolean;
  /** Read on inside. */
  isHeld: boolean;
  /** Resolves when it is over, or read up to the mark. */
  readonly heard: Promise<void>;
  /** Ends what its reader sees. */
  end(): void;
  note(text: string): void;
}

export class CallPipes {
  private readonly options: CallPipesOptions;
  private readonly callOfPath = new Map<string, string>();
  private names: string[] = [];
  private used: string[] = [];
  private next = 0;
  private refill: Promise<void> | undefined;
  private readonly held: { readonly pid: number; readonly path: string }[] = [];
  private readonly pipes = new Set<ContainerPipe>();

  constructor(options: CallPipesOptions) {
    this.options = options;
  }

  callOf(path: string): string | undefined {
    return this.callOfPath.get(path);
  }

  /** Rejects with PipesSpoiled where output would vanish. */
  async open(callId: string): Promise<HandPipe> {
    const path = await this.take();
    if (!(await this.isThere(path))) throw new PipesSpoiled(this.options.dir);
    const lane = await this.options.pool.take();
    this.callOfPath.set(path, callId);
    return this.read(path, lane);
  }

  close(): void {
    for (const pipe of this.pipes) pipe.end();
  }

  /** Still a pipe that can be opened; asked of the shell itself, without a process. */
  private async isThere(path: string): Promise<boolean> {
    const { code } = await this.options.order(`[ -p ${quote(path)} ] && [ -r ${quote(path)} ]`);
    return code === 0;
  }

  private read(path: string, lane: Lane): ContainerPipe {
    const mark = randomBytes(12).toString("hex");
    let onHeard = () => {};
    const reading: Reading = {
      path,
      lane,
      mark,
      isOver: false,
      isHeld: false,
      end: () => pipe.end(),
      note: (text) => pipe.push(Buffer.from(text)),
      heard: new Promise((resolve) => {
        onHeard = resolve;
      }),
    };
    const over = () => {
      reading.isOver = true;
      pipe.end();
      this.pipes.delete(pipe);
      if (!reading.isHeld) this.forget(path);
      onHeard();
    };
    const pipe = new ContainerPipe({
      path,
      onFull: () => lane.pause(),
      onDrained: () => lane.resume(),
      finish: () => this.finish(reading),
    });
    this.pipes.add(pipe);
    lane.listenFor(mark);
    lane.use({
      onData: (output, chunk) => {
        if (output === "stdout") pipe.push(chunk);
      },
      onMark: (_, token, [word, code]) => {
        if (token === mark) {
          pipe.end();
          onHeard();
        } else if (word === "z") {
          // It was gone before its reader had opened it.
          if (code !== "0" && !reading.isHeld) pipe.push(Buffer.from(REMOVED_NOTE));
          over();
          // Else it is on its way out.
          if (!reading.isHeld) this.options.pool.giveBack(lane);
        }
      },
      onEnd: () => void this.brokeOff(reading, pipe).then(over),
    });
    lane.line(`cat <${quote(path)}; say z $?`);
    return pipe;
  }

  /** Nothing that was cut may pass for all there was; of a container that ended, others tell. */
  private async brokeOff(reading: Reading, pipe: ContainerPipe): Promise<void> {
    if (reading.isOver || reading.isHeld) return;
    if (await this.options.isRunning()) pipe.push(Buffer.from(CUT_NOTE));
  }

  /** See HandPipe. What was written until now stands before our mark in the pipe. */
  private async finish(reading: Reading): Promise<{ held: boolean }> {
    const { order, pool } = this.options;
    const { path, lane, mark, heard } = reading;
    await this.soon(heard);
    if (reading.isOver) return { held: false };
    if (!(await this.isThere(path).catch(() => true))) return this.endOfRemoved(reading);
    // In the background, as an orphan: a pipe that is full takes the mark only when its reader goes on.
    const write = `( { printf '\\001%s m\\001' ${mark} 1<>${quote(path)}; } & )`;
    const isMarked = await order(write).then(
      ({ code }) => code === 0,
      () => false,
    );
    // Without a mark, what was heard by now is all that can be said.
    await (isMarked ? heard : this.options.clock.sleep(UNMARKED_AFTER_MS));
    if (!reading.isOver) await this.options.clock.sleep(END_BY_ITSELF_WITHIN_MS);
    if (reading.isOver) return { held: false };
    reading.isHeld = true;
    reading.end();
    await this.dropRest(path).catch(() => {});
    pool.drop(lane);
    return { held: true };
  }

  /** Nobody can say what else was written to it, or whether anybody still will. */
  private async endOfRemoved(reading: Reading): Promise<{ held: boolean }> {
    await this.soon(reading.heard);
    if (reading.isOver) return { held: false };
    reading.note(REMOVED_NOTE);
    reading.isHeld = true;
    reading.end();
    this.options.pool.drop(reading.lane);
    this.forget(reading.path);
    return { held: true };
  }

  private async soon(heard: Promise<void>): Promise<void> {
    let stop = () => {};
    const timeout = new Promise<void>((resolve) => {
      stop = this.options.clock.after(END_BY_ITSELF_WITHIN_MS, resolve);
    });
    await Promise.race([heard, timeout]);
    stop();
  }

  /** Somebody reads on inside, so that whoever still writes neither blocks nor dies. */
  private async dropRest(path: string): Promise<void> {
    const { order } = this.options;
    // With a writer of our own while it opens the pipe: those it is for may just have gone.
    const read = `cat <${quote(path)} >/dev/null 2>&1 5>&-`;
    const { text } = await order(`( exec 5<>${quote(path)}; ${read} & printf %s $! )`);
    this.held.push({ pid: Number(text), path });
    const oldest = this.held.length > MAX_HELD_PIPES ? this.held.shift() : undefined;
    if (oldest === undefined) return;
    this.forget(oldest.path);
    // Its number may be another process's by now.
    const isIt = `case $(readlink /proc/${oldest.pid}/fd/0) in ${quote(oldest.path)}*)`;
    await order(`( ${isIt} kill -9 ${oldest.pid} ;; esac )`);
  }

  /** The name is of no use any more; it goes with the next order. */
  private forget(path: string): void {
    this.callOfPath.delete(path);
    this.used.push(path);
  }

  private async take(): Promise<string> {
    for (;;) {
      if (this.names.length < LOW_STOCK) this.startRefill();
      const name = this.names.shift();
      if (name !== undefined) return posix.join(this.options.dir, name);
      await this.refill;
    }
  }

  private startRefill(): void {
    if (this.refill) return;
    const names = Array.from({ length: BATCH }, () => `p${this.next++}`);
    const used = this.used.splice(0).map(quote);
    const remove = used.length === 0 ? "" : `rm -f -- ${used.join(" ")}; `;
    this.refill = this.options
      .order(`( cd -- ${quote(this.options.dir)} && { ${remove}mkfifo -m 600 ${names.join(" ")}; } 2>&1 )`)
      .then(({ code, text }) => {
        if (code !== 0 && !NO_PROCESS.test(text)) throw new PipesSpoiled(this.options.dir);
        if (code !== 0) throw new HandError(`mkfifo ended with ${code}: ${text.trim().slice(0, 300)}`);
        this.names.push(...names);
      })
      .finally(() => {
        this.refill = undefined;
      });
    this.refill.catch(() => {}); // the next `take` sees it
  }
}
