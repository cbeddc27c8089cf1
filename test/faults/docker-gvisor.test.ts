/** The docker driver with gVisor's runtime, by the suite that all drivers pass; what takes longest there only where all of it runs. */
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { HandNetwork } from "../../hand-agent/drivers/driver.ts";
import { messageOf } from "../../kit/errors.ts";
import { describeDriver, PARTS } from "../contract/driver-contract.ts";
import { builtRelays } from "../kit/built-relays.ts";
import type { TestEngine } from "../kit/docker.ts";
import { ensureBashImage } from "../kit/docker-images.ts";
import { DockerRig } from "../kit/docker-rig.ts";
import { eventually } from "../kit/eventually.ts";
import { isWholeRun } from "../kit/fault-trials.ts";
import {
  processesInSandboxes,
  RUNSC_ALONE,
  RUNSC_HOSTNET,
  startGvisorEngine,
  whyNoGvisor,
} from "../kit/gvisor.ts";
import { textOf, toolCaller } from "../kit/tool-caller.ts";

// What starts many programs is for the whole run: the runsc of 2022 that Debian has breaks off about one in a thousand
// connections into a container, before the program there has begun (docs/docker-hands.md).
const BOUNDED = [PARTS.lifeOfAHand, PARTS.files];

const skip = whyNoGvisor();
let engine: TestEngine;
let stopEngine = async () => {};

beforeAll(async () => {
  if (skip !== undefined) return;
  const started = await startGvisorEngine();
  stopEngine = () => started.engine.release();
  engine = { ...started.engine, release: async () => {} };
});
afterAll(() => stopEngine());

describeDriver(
  "docker (gVisor)",
  async () => {
    const rig = await DockerRig.start({}, engine, ensureBashImage);
    return {
      driver: rig.withContainer({ runtime: RUNSC_ALONE }),
      zombies: () => 0,
      processesWith: (number) => processesInSandboxes(engine, number),
      dispose: () => rig.stop(),
    };
  },
  skip,
  isWholeRun ? Object.values(PARTS) : BOUNDED,
);

describe.skipIf(skip !== undefined)("a hand in gVisor", () => {
  const limited = { mode: "limited", allowedHosts: ["allowed.example"] } as const;
  let rig: DockerRig;
  beforeAll(async () => {
    rig = await DockerRig.start({ relays: builtRelays() }, engine, ensureBashImage);
  });
  afterAll(() => rig?.stop());

  it("whose runtime passes network calls on reaches the relay and nothing else", async () => {
    const hand = await rig.provision("hand_hostnet", {
      container: { runtime: RUNSC_HOSTNET },
      network: limited,
    });
    const say = async (command: string) => textOf(await toolCaller(hand).bash(command));
    const ask = (host: string) =>
      `printf 'CONNECT ${host}:443 HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n' | nc 127.0.0.1 7480 | head -n 1`;
    expect(await say("dmesg | grep -c gVisor")).toBe("1");
    expect(await say(ask("denied.example"))).toMatch(/^HTTP\/1.1 403 /);
    expect(await say(ask("169.254.169.254"))).toMatch(/^HTTP\/1.1 403 /);
    expect(await say("nc -w 2 169.254.169.254 80 </dev/null 2>&1")).toMatch(/unreachable/);
    // The way out is there again when the container is a new one.
    await rig.engine.docker("kill", `tendon-${hand.id}`);
    await eventually(async () => !(await toolCaller(hand).bash("true")).isError);
    expect(await say(ask("denied.example"))).toMatch(/^HTTP\/1.1 403 /);
    await hand.destroy();
  });

  it("whose runtime has a network of its own gets none but `none`, and is told so before anything is made", async () => {
    const unrestricted = { mode: "unrestricted" } as const;
    const refused = (runtime: string, network: HandNetwork) =>
      rig.provision("hand_refused", { container: { runtime }, network }).then(
        () => "made",
        (error) => messageOf(error),
      );
    expect(await refused(RUNSC_ALONE, limited)).toMatch(/limited is not kept by the runtime runsc/);
    expect(await refused(RUNSC_ALONE, unrestricted)).toMatch(/unrestricted is not kept by the runtime runsc/);
    expect(await refused(RUNSC_HOSTNET, unrestricted)).toMatch(/unrestricted is not offered with gVisor/);
    expect(await rig.made()).toEqual([]);
  });
});
