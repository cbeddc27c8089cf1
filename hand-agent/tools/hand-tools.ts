/** What the tools of one hand keep between calls. Make one per hand; it needs no closing beyond the hand's own. */
import type { Clock } from "../../kit/clock.ts";
import type { Hand } from "../drivers/driver.ts";
import { Shell } from "./shell.ts";
import { DEFAULT_STALL_MS } from "./tool.ts";

export class HandTools {
  readonly shell: Shell;
  readonly clock: Clock;
  private readonly hand: Hand;
  private ripgrep: Promise<boolean> | undefined;

  /** `stallMs`: how long a command may show no progress; 0 means the default. */
  constructor(hand: Hand, clock: Clock, stallMs = 0) {
    this.hand = hand;
    this.clock = clock;
    this.shell = new Shell(hand, clock, stallMs || DEFAULT_STALL_MS);
  }

  /** Whether the hand has ripgrep; its PATH holds system directories only, so it cannot be a file of the workspace. */
  hasRipgrep(): Promise<boolean> {
    this.ripgrep ??= this.askForRipgrep();
    this.ripgrep.catch(() => {
      this.ripgrep = undefined;
    });
    return this.ripgrep;
  }

  private async askForRipgrep(): Promise<boolean> {
    const child = await this.hand.exec({ argv: ["rg", "--version"], cwd: "/" });
    child.stdout.abandon();
    child.stderr.abandon();
    return (await child.exit).code === 0;
  }
}
