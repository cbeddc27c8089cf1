/** What the suite of all drivers is given, and how its parts look into a hand. */
import type { Driver, Hand, HandPipe } from "../../../hand-agent/drivers/driver.ts";
import type { ToolCaller } from "../../kit/tool-caller.ts";

export interface DriverUnderTest {
  driver: Driver;
  /** Host processes that are zombies below the test; what a hand leaves must not be among them. */
  zombies(): number;
  /**
   * Processes that sleep for this number, which no others on the machine do. Independent of what the driver believes.
   * Default: as the machine's own /proc shows them.
   */
  processesWith?(number: string): Promise<number>;
  dispose(): Promise<void>;
}

export interface Parts {
  readonly hand: Hand;
  readonly call: ToolCaller;
  readonly under: DriverUnderTest;
}

/** Tests of one part of the suite. */
export type Part = (get: () => Parts, provision: () => Promise<Hand>) => void;

export async function drain(pipe: HandPipe): Promise<string> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of pipe.chunks) chunks.push(chunk);
  return Buffer.concat(chunks).toString();
}

export async function readAll(hand: Hand, path: string, offset = 0): Promise<string> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of hand.readFile(path, { offset })) chunks.push(chunk);
  return Buffer.concat(chunks).toString();
}

export async function sh(hand: Hand, script: string): Promise<string> {
  const child = await hand.exec({ argv: ["/bin/bash", "-c", script] });
  child.stderr.abandon();
  return drain(child.stdout);
}
