import { describe, expect, it } from "vitest";
import { eventually } from "../test/kit/eventually.ts";
import type { OutsideTurn } from "./drivers/driver.ts";
import { ProvisionTurns } from "./provision-turns.ts";

/** Hands that are made until the test says so. */
class Making {
  readonly turns: ProvisionTurns;
  readonly begun: string[] = [];
  readonly told = new Map<string, string[]>();
  private readonly ends = new Map<string, (error?: Error) => void>();
  private readonly driver: { name: string; provisionsAtOnce?: number };

  constructor(turns: ProvisionTurns, driver: { name: string; provisionsAtOnce?: number }) {
    this.turns = turns;
    this.driver = driver;
  }

  /** For hands whose outcome the test sees elsewhere. */
  begin(...handIds: string[]): void {
    for (const handId of handIds) void this.ask(handId);
  }

  ask(handId: string, signal = new AbortController().signal, pull?: Promise<void>): Promise<string> {
    const told: string[] = [];
    this.told.set(handId, told);
    const onProgress = (detail: string) => void told.push(detail);
    const asked = this.turns.run({ driver: this.driver, handId, signal, onProgress }, (outside) =>
      this.make(handId, outside, pull),
    );
    asked.catch(() => {});
    return asked;
  }

  end(handId: string, error?: Error): void {
    this.ends.get(handId)!(error);
  }

  async saw(...handIds: string[]): Promise<void> {
    await eventually(() => this.begun.length >= handIds.length);
    expect(this.begun).toEqual(handIds);
  }

  private async make(handId: string, outside: OutsideTurn, pull?: Promise<void>): Promise<string> {
    if (pull !== undefined) await outside(() => pull);
    this.begun.push(handId);
    await new Promise<void>((resolve, reject) => {
      this.ends.set(handId, (error) => (error === undefined ? resolve() : reject(error)));
    });
    return handId;
  }
}

const docker = { name: "docker", provisionsAtOnce: 2 };

describe("hands of a driver that are made", () => {
  it("are as many at once as it bears; the others come in the order in which they were asked for", async () => {
    const making = new Making(new ProvisionTurns(undefined), docker);
    const asked = ["a", "b", "c", "d", "e"].map((handId) => making.ask(handId));
    await making.saw("a", "b");
    expect(making.told.get("a")).toEqual([]);
    expect(making.told.get("d")).toEqual([
      "waits until other hands are made: 2 are being made, 1 wait before it",
    ]);
    making.end("b");
    await making.saw("a", "b", "c");
    making.end("c", new Error("no such image"));
    await making.saw("a", "b", "c", "d");
    expect(making.told.get("d")?.at(-1)).toBe("is being made");
    await expect(asked[2]).rejects.toThrow("no such image");
    for (const handId of ["a", "d"]) making.end(handId);
    await making.saw("a", "b", "c", "d", "e");
    making.end("e");
    expect(await Promise.all([asked[0], asked[1], asked[3], asked[4]])).toEqual(["a", "b", "d", "e"]);
  });

  it("leave the line when they are given up, and take no place then", async () => {
    const making = new Making(new ProvisionTurns(1), docker);
    making.begin("a");
    const stop = new AbortController();
    const late = making.ask("late", stop.signal);
    const released = making.ask("released");
    making.begin("b");
    stop.abort(new Error("it was not ready within 1 ms"));
    making.turns.giveUp("released", new Error("it was released"));
    making.turns.giveUp("a", new Error("it does not wait any more"));
    await expect(late).rejects.toThrow("not ready");
    await expect(released).rejects.toThrow("it was released");
    making.end("a");
    await making.saw("a", "b");
    await expect(making.ask("never", AbortSignal.abort(new Error("over")))).rejects.toThrow("over");
    making.end("b");
    making.begin("c");
    await making.saw("a", "b", "c");
    making.end("c");
  });

  it("let others go on while an image is pulled, and come before those who were asked for later", async () => {
    const making = new Making(new ProvisionTurns(1), docker);
    let pulled = () => {};
    void making.ask("pulls", undefined, new Promise((resolve) => (pulled = resolve)));
    const failed = making.ask("no_image", undefined, Promise.reject(new Error("no registry has it")));
    await expect(failed).rejects.toThrow("no registry has it");
    making.begin("a");
    making.begin("b");
    await making.saw("a");
    pulled();
    await eventually(() => making.told.get("pulls")!.length > 0);
    making.end("a");
    await making.saw("a", "pulls");
    making.end("pulls");
    await making.saw("a", "pulls", "b");
    making.end("b");
  });

  it("wait for nobody of another driver, nor where the driver bears any number", async () => {
    const turns = new ProvisionTurns(undefined);
    const [containers, processes] = [new Making(turns, docker), new Making(turns, { name: "process" })];
    containers.begin("a", "b", "c");
    processes.begin("d", "e", "f", "g");
    await processes.saw("d", "e", "f", "g");
    await containers.saw("a", "b");
    for (const handId of ["a", "b"]) containers.end(handId);
    await containers.saw("a", "b", "c");
    for (const handId of ["d", "e", "f", "g"]) processes.end(handId);
    containers.end("c");
  });
});
