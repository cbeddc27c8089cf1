/** Holds one of a harness's calls to the server back until a test lets it through. */
import type { ServerClients } from "../../harness/server-clients.ts";
import { isTendonError } from "../../kit/errors.ts";

export type Turn = "append" | "dispatch";

export class Turnstile {
  /** Calls that came by, in order. */
  readonly passed: Turn[] = [];
  /** What the held call was answered: "ok", or the reason of its refusal. */
  answer: string | undefined;
  private readonly stopAt: number;
  private open: () => void = () => {};
  private arrived: () => void = () => {};
  /** Resolves when the call that is to be held stands here. */
  readonly reached = new Promise<void>((resolve) => {
    this.arrived = resolve;
  });
  private readonly opened = new Promise<void>((resolve) => {
    this.open = resolve;
  });

  /** Holds the `stopAt`-th call, from 1; 0 holds none. */
  constructor(stopAt: number) {
    this.stopAt = stopAt;
  }

  letThrough(): void {
    this.open();
  }

  clients(clients: ServerClients): ServerClients {
    const { sessions, hands } = clients;
    return {
      ...clients,
      sessions: {
        ...sessions,
        emitEvents: (request, options) =>
          this.pass("append", (isHeld) =>
            // Its own signal would end it before it is sent; what it meets at the server is what is asked here.
            sessions.emitEvents(request, isHeld ? { deadlineMs: 15_000 } : options),
          ),
      },
      hands: {
        ...hands,
        execute: (request, options) => {
          const stream = this.dispatch(hands, request, options);
          return Object.assign(stream, { cancel: () => void stream.return(undefined) });
        },
      },
    };
  }

  private async *dispatch(
    hands: ServerClients["hands"],
    request: Parameters<ServerClients["hands"]["execute"]>[0],
    options: Parameters<ServerClients["hands"]["execute"]>[1],
  ) {
    const isHeld = await this.arrive("dispatch");
    try {
      yield* hands.execute(request, isHeld ? {} : options);
      if (isHeld) this.answer = "ok";
    } catch (error) {
      if (isHeld) this.answer = reasonOf(error);
      throw error;
    }
  }

  private async pass<T>(turn: Turn, call: (isHeld: boolean) => Promise<T>): Promise<T> {
    const isHeld = await this.arrive(turn);
    try {
      const answer = await call(isHeld);
      if (isHeld) this.answer = "ok";
      return answer;
    } catch (error) {
      if (isHeld) this.answer = reasonOf(error);
      throw error;
    }
  }

  private async arrive(turn: Turn): Promise<boolean> {
    this.passed.push(turn);
    if (this.passed.length !== this.stopAt) return false;
    this.arrived();
    await this.opened;
    return true;
  }
}

function reasonOf(error: unknown): string {
  return isTendonError(error) ? error.reason : String(error);
}
