/**
 * The agent's end of one lane (`lane-script.ts`): a connection into a container that stays open, so that a call costs
 * no `docker exec`. A lane does one thing at a time. When the connection ends, whatever was going on fails.
 */

import { randomBytes } from "node:crypto";
import type { Duplex } from "node:stream";
import { type Clock, within } from "../../../kit/clock.ts";
import { HandError } from "../driver.ts";
import { AttachFrames, type Output } from "./attach-frames.ts";
import { MarkedStream } from "./marked-stream.ts";

/** How long a lane may take to say that it is there. Measured: 1–60 ms. */
const HELLO_WITHIN_MS = 20_000;
/** Text of one operation; the list of a hand's processes is the longest. */
const MAX_TEXT_BYTES = 16 * 1024 * 1024;
const HELLO = "hello";

export interface LaneUser {
  onData(output: Output, chunk: Buffer): void;
  /** Marks of this lane, and of `listenFor` tokens. */
  onMark(output: Output, token: string, words: readonly string[]): void;
  /** The connection has ended under it. */
  onEnd(): void;
}

export interface Reply {
  /** The exit status of the operation. */
  readonly code: number;
  readonly text: string;
}

export class Lane {
  readonly token = randomBytes(12).toString("hex");
  /** Its process inside the container; a leader of its group. */
  pid = -1;
  isOpen = true;
  /** Its shell was killed and the container is well: another shell has said hello on its connection. */
  isReplaced = false;
  readonly ended: Promise<void>;
  private readonly stream: Duplex;
  private readonly tokens = new Set<string>([HELLO, this.token]);
  private readonly outputs: Record<Output, MarkedStream>;
  private user: LaneUser | undefined;
  private onHello: ((pid: number) => void) | undefined;

  private constructor(stream: Duplex) {
    this.stream = stream;
    this.outputs = { stdout: this.output("stdout"), stderr: this.output("stderr") };
    const frames = new AttachFrames((output, piece) => this.outputs[output].push(piece));
    this.ended = new Promise((resolve) => {
      const end = () => {
        if (!this.isOpen) return;
        this.isOpen = false;
        this.outputs.stdout.end();
        this.outputs.stderr.end();
        this.user?.onEnd();
        this.user = undefined;
        resolve();
      };
      stream.on("data", (chunk: Buffer) => frames.push(chunk));
      for (const event of ["end", "error", "close"]) stream.on(event, end);
    });
  }

  /** Resolves when the shell inside has said hello. `start` is what makes it run, where it does not run yet. */
  static async open(stream: Duplex, options: { clock: Clock; start?: () => Promise<void> }): Promise<Lane> {
    const lane = new Lane(stream);
    const hello = new Promise<number>((resolve, reject) => {
      lane.onHello = resolve;
      void lane.ended.then(() => reject(new HandError("/bin/sh ended at once; does the image have one?")));
    });
    hello.catch(() => {});
    try {
      await options.start?.();
      lane.pid = await within(options.clock, HELLO_WITHIN_MS, hello, () => new HandError("no answer"));
      lane.stream.write(`${lane.token}\n`);
      return lane;
    } catch (error) {
      lane.close();
      throw error;
    }
  }

  /** Takes the lane until `leave`. */
  use(user: LaneUser): void {
    if (!this.isOpen) {
      user.onEnd();
      return;
    }
    this.user = user;
  }

  leave(): void {
    this.user = undefined;
    for (const token of this.tokens) if (token !== HELLO && token !== this.token) this.tokens.delete(token);
    this.resume();
  }

  listenFor(token: string): void {
    this.tokens.add(token);
  }

  /** One operation that answers with a short text. Rejects with HandError when the lane ends under it. */
  run(script: string): Promise<Reply> {
    return new Promise((resolve, reject) => {
      const chunks: Buffer[] = [];
      let bytes = 0;
      this.use({
        onData: (output, chunk) => {
          if (output === "stderr" || bytes > MAX_TEXT_BYTES) return;
          bytes += chunk.length;
          chunks.push(chunk);
        },
        onMark: (_, _token, [word, code]) => {
          if (word !== "z") return;
          this.leave();
          resolve({ code: Number(code), text: Buffer.concat(chunks).toString() });
        },
        onEnd: () => reject(laneLost()),
      });
      this.line(`${script}; say z $?`);
    });
  }

  /** One line of script; must hold no newline but in `quote`d words, which have none. */
  line(script: string): void {
    if (this.isOpen) this.stream.write(`${script}\n`);
  }

  /** Raw input of the program that runs on the lane. Resolves when the engine has taken it. */
  write(data: string | Uint8Array): Promise<void> {
    return new Promise((resolve, reject) => {
      if (!this.isOpen || this.stream.writableEnded) return reject(laneLost());
      this.stream.write(data, (error) => (error ? reject(laneLost()) : resolve()));
    });
  }

  endInput(): void {
    this.stream.end();
  }

  pause(): void {
    this.stream.pause();
  }

  resume(): void {
    this.stream.resume();
  }

  /** The shell inside sees the end of its input and leaves; a program that runs on it does not. */
  close(): void {
    this.stream.destroy();
  }

  private output(output: Output): MarkedStream {
    return new MarkedStream({
      tokens: this.tokens,
      onData: (chunk) => this.user?.onData(output, chunk),
      onMark: (token, words) => {
        if (token !== HELLO) this.user?.onMark(output, token, words);
        // It was killed, and the first process has started another one, which nobody needs.
        else if (this.onHello === undefined) {
          this.isReplaced = true;
          this.close();
        } else {
          this.onHello(Number(words[0]));
          this.onHello = undefined;
        }
      },
    });
  }
}

export function laneLost(): HandError {
  return new HandError("the connection into the container ended");
}
