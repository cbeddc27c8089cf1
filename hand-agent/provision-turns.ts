/**
 * How many hands of a driver are made at once; the others wait in line, first come first served.
 *
 * A line holds no more than the agent's capacity, because a hand that waits has a place already. Who is given up (its time
 * is over, it is released, the agent stops) leaves the line at once.
 */
import type { Driver, OutsideTurn } from "./drivers/driver.ts";

interface Waiter {
  readonly handId: string;
  readonly ticket: number;
  readonly start: () => void;
  readonly giveUp: (reason: unknown) => void;
}

interface Line {
  readonly atOnce: number;
  running: number;
  /** In the order of their tickets; empty while there is room. */
  readonly waiting: Waiter[];
}

export interface TurnRequest {
  readonly driver: Pick<Driver, "name" | "provisionsAtOnce">;
  readonly handId: string;
  /** Takes a hand that waits out of the line, with the signal's reason. */
  readonly signal: AbortSignal;
  /** Told when the hand has to wait, and when its turn comes after that. */
  readonly onProgress: (detail: string) => void;
}

export class ProvisionTurns {
  private readonly atOnce: number | undefined;
  private readonly lines = new Map<string, Line>();
  private tickets = 0;

  /** `atOnce`, at least 1, holds for each driver; without it each driver says for itself, and one that does not has no line. */
  constructor(atOnce: number | undefined) {
    this.atOnce = atOnce;
  }

  /** Rejects with the reason when the hand was given up before its turn came; then nothing was run. */
  async run<T>(request: TurnRequest, make: (outside: OutsideTurn) => Promise<T>): Promise<T> {
    const line = this.lineOf(request.driver);
    this.tickets += 1;
    const ticket = this.tickets;
    await enter(line, ticket, request);
    let isIn = true;
    const outside: OutsideTurn = async (work) => {
      isIn = false;
      leave(line);
      const result = await work();
      await enter(line, ticket, request);
      isIn = true;
      return result;
    };
    try {
      return await make(outside);
    } finally {
      if (isIn) leave(line);
    }
  }

  /** Takes the hand out of the line if it waits there. */
  giveUp(handId: string, reason: unknown): void {
    for (const { waiting } of this.lines.values()) {
      for (const waiter of waiting.filter((each) => each.handId === handId)) waiter.giveUp(reason);
    }
  }

  private lineOf({ name, provisionsAtOnce = Number.POSITIVE_INFINITY }: TurnRequest["driver"]): Line {
    let line = this.lines.get(name);
    line ??= { atOnce: this.atOnce ?? provisionsAtOnce, running: 0, waiting: [] };
    this.lines.set(name, line);
    return line;
  }
}

async function enter(line: Line, ticket: number, { handId, signal, onProgress }: TurnRequest): Promise<void> {
  signal.throwIfAborted();
  if (line.running < line.atOnce) {
    line.running += 1;
    return;
  }
  await new Promise<void>((resolve, reject) => {
    const end = () => signal.removeEventListener("abort", onAbort);
    const onAbort = () => waiter.giveUp(signal.reason);
    const waiter: Waiter = {
      handId,
      ticket,
      start: () => {
        end();
        resolve();
      },
      giveUp: (reason) => {
        end();
        line.waiting.splice(line.waiting.indexOf(waiter), 1);
        reject(reason);
      },
    };
    signal.addEventListener("abort", onAbort, { once: true });
    // Who comes back from outside has waited already.
    const behind = line.waiting.findIndex((each) => each.ticket > ticket);
    const ahead = behind < 0 ? line.waiting.length : behind;
    line.waiting.splice(ahead, 0, waiter);
    onProgress(`waits until other hands are made: ${line.running} are being made, ${ahead} wait before it`);
  });
  onProgress("is being made");
}

/** The place goes to the next in line at once, so that nobody who comes now gets before it. */
function leave(line: Line): void {
  const next = line.waiting.shift();
  if (next === undefined) line.running -= 1;
  else next.start();
}
