/** How docker hands come to be: images that are pulled, hands made ahead, ways out through the relay. */
import { randomBytes } from "node:crypto";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { probeDrivers, refreshImages } from "../../hand-agent/driver-offers.ts";
import type { WarmHand } from "../../hand-agent/drivers/docker/warm-pool.ts";
import { HandError, type WarmSpec } from "../../hand-agent/drivers/driver.ts";
import { runSetup } from "../../hand-agent/setup-commands.ts";
import { createLogger } from "../../kit/log.ts";
import { builtRelays } from "../kit/built-relays.ts";
import { whyNoDocker } from "../kit/docker.ts";
import { ensureBusyboxImage } from "../kit/docker-images.ts";
import { DockerRig } from "../kit/docker-rig.ts";
import { eventually } from "../kit/eventually.ts";
import { ImageRegistry } from "../kit/image-registry.ts";
import { textOf, toolCaller } from "../kit/tool-caller.ts";

const newId = (name: string) => `hand_${name}_${randomBytes(4).toString("hex")}`;

/** A pool's word in an environment, with these setup commands. */
function pool(size: number, setup: readonly string[] = [], maxAgeMs = 60_000) {
  let setUp = 0;
  const warm: WarmSpec = {
    size,
    maxAgeMs,
    setup: {
      key: setup.length === 0 ? "" : JSON.stringify(setup),
      run: async (hand, signal) => {
        await runSetup(hand, setup, signal);
        setUp += 1;
      },
    },
  };
  /** How many were made ahead and are all set up; the pool has them in the next moment. */
  return { warm, made: () => setUp };
}

/** What a driver keeps of hands made ahead. */
interface Pools {
  readonly pools: ReadonlyMap<string, { readonly ready: readonly { readonly hand: WarmHand }[] }>;
}

describe.skipIf(whyNoDocker() !== undefined)("making docker hands", () => {
  let rig: DockerRig;
  beforeAll(async () => {
    rig = await DockerRig.start({ relays: builtRelays() });
  });
  afterAll(() => rig?.stop());

  const docker = (...args: string[]) => rig.engine.docker(...args);
  const waiting = async () => (await rig.made()).filter((name) => name.startsWith("tendon-warm-")).sort();

  describe("images", () => {
    let registry: ImageRegistry;
    beforeAll(async () => {
      registry = await ImageRegistry.of(rig.engine, await ensureBusyboxImage(rig.engine));
    });
    afterAll(async () => {
      await docker("rmi", "--force", registry.image).catch(() => {});
      await registry?.close();
    });

    it("are pulled only where the environment says so, with their progress told", async () => {
      const { image } = registry;
      await expect(rig.provision(newId("no_pull"), { container: { image } })).rejects.toThrow(
        /the engine has no image .* or let the environment pull it/,
      );
      const told: string[] = [];
      const release = registry.hold();
      const provisioned = rig.provision(newId("pull"), {
        container: { image, pull: true },
        onProgress: (detail) => void told.push(detail),
      });
      await eventually(() => told.some((detail) => /: [0-9.]+ of [0-9.]+ MiB$/.test(detail)));
      release();
      const hand = await provisioned;
      expect(told[0]).toBe(`pulling the image ${image}`);
      await hand.writeFile(`${hand.workdir}/f`, Buffer.from("x"));
      await hand.destroy();
      const digest = (await docker("inspect", "--format", "{{index .RepoDigests 0}}", image)).trim();
      const byDigest = await rig.provision(newId("digest"), { container: { image: digest } });
      await byDigest.destroy();
    });

    it("that no registry has, or whose pull is given up, end the provision with the reason", async () => {
      const missing = registry.image.replace("pulled", "absent");
      await expect(
        rig.provision(newId("absent"), { container: { image: missing, pull: true } }),
      ).rejects.toThrow(/could not pull the image .*absent/);
      await docker("rmi", "--force", registry.image);
      const release = registry.hold();
      const stop = new AbortController();
      const container = { image: registry.image, pull: true };
      const provisioned = rig.driver.provision(
        {
          handId: newId("given_up"),
          container,
          onProgress: () => stop.abort(new HandError("it took too long")),
        },
        stop.signal,
      );
      await expect(provisioned).rejects.toThrow("it took too long");
      release();
      expect((await rig.made()).filter((name) => name.includes("given_up"))).toEqual([]);
    });
  });

  describe("images of this machine", () => {
    it("are found by their id too, where no registry ever gave them a digest", async () => {
      const id = (await docker("inspect", "--format", "{{.Id}}", rig.image)).trim();
      const hand = await rig.provision(newId("by_id"), { container: { image: `tendon-test/node@${id}` } });
      expect(textOf(await toolCaller(hand).bash("echo runs"))).toBe("runs");
      await hand.destroy();
      const other = `tendon-test/node@sha256:${"0".repeat(64)}`;
      await expect(rig.provision(newId("no_id"), { container: { image: other } })).rejects.toThrow(
        /the engine has no image/,
      );
    });

    it("may have a /tmp that only root can write to: the hand's own is writable", async () => {
      const name = `tendon-tmp-${process.pid}`;
      try {
        await docker("run", "--name", name, "--network", "none", rig.image, "chmod", "755", "/tmp");
        await docker("commit", name, `tendon-test/${name}`);
        const hand = await rig.provision(newId("tmp"), { container: { image: `tendon-test/${name}` } });
        const { bash } = toolCaller(hand);
        expect(textOf(await bash("echo kept >/tmp/f && cat /tmp/f"))).toBe("kept");
        await hand.destroy();
      } finally {
        await docker("rm", "--force", name).catch(() => {});
        await docker("rmi", "--force", `tendon-test/${name}`).catch(() => {});
      }
    });

    it("are told to the server by every name that an environment may give them", async () => {
      const [offer] = await probeDrivers([rig.driver]);
      const id = (await docker("inspect", "--format", "{{.Id}}", rig.image)).trim();
      expect(offer?.description.images).toEqual(
        expect.arrayContaining([rig.image, id, `${rig.image.split(":")[0]}@${id}`]),
      );
      const made = `tendon-test/later-${process.pid}`;
      try {
        await docker("tag", rig.image, made);
        await refreshImages([offer!], createLogger("test", "silent"));
        expect(offer?.description.images).toEqual(expect.arrayContaining([made, `${made}:latest`]));
      } finally {
        await docker("rmi", made);
      }
    });
  });

  describe("ahead", () => {
    it("gives each waiting hand to one caller, set up once, under the caller's own id (R15)", async () => {
      const { warm, made } = pool(2, ["echo made >>made"]);
      const spec = { warm };
      const first = await rig.provision(newId("first"), spec);
      expect(first.isSetUp).toBe(false);
      await eventually(() => made() === 2, { withinMs: 60_000 });
      const hands = await Promise.all([1, 2, 3].map((n) => rig.provision(newId(`claim${n}`), spec)));
      expect(hands.map(({ isSetUp }) => isSetUp).sort()).toEqual([false, true, true]);
      const workdirs = await Promise.all(
        hands.map(async (hand) => {
          const { bash } = toolCaller(hand);
          const id = textOf(await bash('echo "$TENDON_HAND_ID"'));
          expect(id).toBe(hand.id);
          if (hand.isSetUp === true) expect(textOf(await bash("cat made"))).toBe("made");
          return textOf(await bash("hostname"));
        }),
      );
      expect(new Set(workdirs).size).toBe(3);
      for (const hand of [first, ...hands]) await hand.destroy();
    });

    it("makes none for hands whose files have to be there before the setup", async () => {
      const { warm } = pool(1, ["cat given >copy"]);
      const resources = [{ kind: "inline" as const, path: "given", content: "mine" }];
      const hand = await rig.provision(newId("given"), { warm, resources });
      expect(hand.isSetUp).toBe(false);
      expect(textOf(await toolCaller(hand).bash("cat given"))).toBe("mine");
      await hand.destroy();
    });

    it("replaces what grew too old or was killed, and gives only what works", async () => {
      const { warm, made } = pool(1);
      const spec = { warm, env: { POOL: "aging" } };
      const first = await rig.provision(newId("young"), spec);
      const [name = ""] = await eventually(async () => {
        const names = await waitingOf("aging");
        return names.length === 1 && made() === 1 ? names : undefined;
      });
      await docker("kill", name);
      // The pool hears of it a moment later, and until then cannot know better.
      const { pools } = Reflect.get(rig.driver, "warm") as unknown as Pools;
      const ready = () => [...pools.values()].flatMap((each) => each.ready);
      await eventually(() => ready().some(({ hand }) => !hand.isUsable));
      const hand = await rig.provision(newId("not_dead"), spec);
      expect(textOf(await toolCaller(hand).bash("echo works"))).toBe("works");
      // Nobody waits for what is left of it.
      await eventually(async () => !(await waitingOf("aging")).includes(name));
      const short = pool(1, [], 1_500);
      const other = await rig.provision(newId("aged"), { warm: short.warm, env: { POOL: "short" } });
      await eventually(() => short.made() === 1);
      // Nobody has asked for one for as long as one may wait: the pool ends with its last.
      await eventually(async () => (await waitingOf("short")).length === 0, { withinMs: 60_000 });
      for (const each of [first, hand, other]) await each.destroy();
    });

    it("leaves none behind: not when the agent stops, nor after one that died", async () => {
      const dead = await rig.another();
      const { warm, made } = pool(1);
      const hand = await dead.provision(newId("dead"), { warm });
      await eventually(() => made() === 1);
      expect(await dead.made()).toContainEqual(expect.stringMatching(/^tendon-warm-/));
      const next = await rig.another({ sameData: false });
      const heir = await dead.another({ sameData: true });
      expect(await heir.driver.listHandIds()).toEqual([hand.id]);
      expect((await heir.made()).filter((name) => name.startsWith("tendon-warm-"))).toEqual([]);
      await next.stop();
      await dead.driver.close();
      await heir.stop();
    });
  });

  it("is refused for an image whose programs the kernel under it does not serve, with what they say", async () => {
    const image = `tendon-test/odd-stat:${process.pid}`;
    const id = `tendon-test-odd-stat-${process.pid}`;
    const stat = "#!/bin/sh\necho 'stat: cannot statx: Invalid argument' >&2\nexit 1\n";
    const change = 'printf %s "$1" >/bin/stat';
    await docker("run", "--network=none", "--name", id, rig.image, "/bin/sh", "-c", change, "sh", stat);
    await docker("commit", id, image);
    await docker("rm", id);
    const made = rig.provision(newId("odd"), { container: { image } });
    await expect(made).rejects.toThrow(
      /stat fails in this container's runtime \(stat: cannot statx: Invalid/,
    );
    expect(await rig.made()).not.toContainEqual(expect.stringContaining("_odd_"));
    await docker("rmi", "--force", image);
  });

  describe("with the network limited", () => {
    it("leads through the relay alone, which refuses what the environment does not name", async () => {
      const hand = await rig.provision(newId("limited"), {
        network: { mode: "limited", allowedHosts: ["allowed.example"] },
      });
      const { bash } = toolCaller(hand);
      expect(textOf(await bash("ls /sys/class/net; echo $HTTPS_PROXY"))).toBe("lo\nhttp://127.0.0.1:7480");
      const ask = (host: string) =>
        `node -e 'require("http").request({port:7480,method:"CONNECT",path:"${host}:443"}).on("connect",(r)=>{console.log(r.statusCode);process.exit()}).on("error",(e)=>console.log(e.code)).end()'`;
      expect(textOf(await bash(ask("denied.example")))).toBe("403");
      expect(textOf(await bash(ask("169.254.169.254")))).toBe("403");
      // The way out is there again when the container is a new one.
      await docker("kill", `tendon-${hand.id}`);
      // A call that comes before this was noticed says so and has not run.
      await eventually(async () => !(await bash("true")).isError);
      expect(textOf(await bash(ask("denied.example")))).toBe("403");
      await hand.destroy();
    });

    it("is refused where there is no relay, with the reason", async () => {
      const without = await rig.another({ relays: undefined });
      const network = { mode: "limited" as const, allowedHosts: ["allowed.example"] };
      await expect(without.provision(newId("none"), { network })).rejects.toThrow(/no relay/);
      await without.stop();
    });
  });

  async function waitingOf(pool: string): Promise<string[]> {
    const names = await waiting();
    const found = await Promise.all(
      names.map(async (name) => {
        const env = await docker("inspect", "--format", "{{.Config.Env}}", name).catch(() => "");
        return env.includes(`POOL=${pool}`) ? [name] : [];
      }),
    );
    return found.flat();
  }
});
