/** What hands say while their engine is away, is restarted under a call, or has no disk left; and that they go on afterwards. */
import { afterEach, describe, expect, it } from "vitest";
import { FileError, type Hand } from "../../hand-agent/drivers/driver.ts";
import { whyNoDocker } from "../kit/docker.ts";
import { ensureBashImage } from "../kit/docker-images.ts";
import { DockerRig } from "../kit/docker-rig.ts";
import { eventually } from "../kit/eventually.ts";
import { PrivateEngine } from "../kit/private-engine.ts";
import { textOf, toolCaller } from "../kit/tool-caller.ts";

const whyNot = process.getuid?.() === 0 ? whyNoDocker() : "an engine of its own needs root";

describe.skipIf(whyNot !== undefined)("an engine", () => {
  let rig: DockerRig | undefined;
  let engine: PrivateEngine;
  afterEach(() => rig?.stop());

  async function handOn(diskMib: number): Promise<Hand> {
    engine = await PrivateEngine.start({ diskMib });
    rig = await DockerRig.start({}, engine.engine, ensureBashImage);
    return rig.provision("hand_engine");
  }

  it("that is restarted under a call is no result and no loss: the call says so, later calls wait for the engine, files stay", async () => {
    const hand = await handOn(150);
    const { bash } = toolCaller(hand);
    await bash("echo kept >f; X=1");
    const running = bash("echo begun; sleep 1000; echo never");
    await eventually(async () => (await hand.callProcesses()).some(({ command }) => command === "sleep"));
    await engine.stop();
    const result = await running;
    expect(result.isError).toBe(true);
    expect(textOf(result)).toMatch(/^begun\n[\s\S]*the container has ended: /);
    const away = await bash("cat f");
    expect([away.isError, away.outcome]).toEqual([true, "failed"]);
    expect(textOf(away)).toMatch(/cannot be reached/);
    await expect(hand.stat(`${hand.workdir}/f`)).rejects.toThrow(/cannot be reached/);
    await engine.run();
    expect(textOf(await bash('cat f; echo "[$X]"'))).toMatch(/^kept\n\[\]/);
    expect((await hand.callProcesses()).map(({ command }) => command)).toEqual(["bash"]);
    await hand.destroy();
  });

  it("that has no disk left fails the write with that reason, keeps the old file, and the hand goes on", async () => {
    const hand = await handOn(150);
    const { bash } = toolCaller(hand);
    const path = `${hand.workdir}/f`;
    await hand.writeFile(path, Buffer.from("old"));
    const big = (async function* () {
      for (let i = 0; i < 3_000; i++) yield Buffer.alloc(512 * 1024, 1);
    })();
    const error = await hand.writeFile(path, big).then(
      () => undefined,
      (reason: unknown) => reason,
    );
    expect(error).toBeInstanceOf(FileError);
    expect((error as FileError).code).toBe("no_space");
    expect(textOf(await bash("cat f; ls -A"))).toBe("old\nf".replace("old\n", "old"));
    expect(textOf(await bash("dd if=/dev/zero of=g bs=1M count=2000; echo $?; rm g; echo fine"))).toMatch(
      /No space left on device[\s\S]*fine$/,
    );
    await hand.destroy();
  });
});
