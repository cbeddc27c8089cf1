import { expect, test } from "vitest";
import { type ContainerRecipe, planContainer, uidOf, volumesOf } from "./container-plan.ts";
import { parseProcesses } from "./container-processes.ts";
import { engineAddress } from "./engine-address.ts";
import { rulesOf } from "./network-rules.ts";

const RECIPE: ContainerRecipe = {
  image: "i",
  workdir: "/hand/work",
  env: {},
  limits: {},
  network: { mode: "none" },
};
const OPTIONS = {
  name: "tendon-hand_1",
  unit: "u1",
  agentId: "a1",
  installationId: "inst_1",
  networkName: "none",
  extraEnv: {},
};

test("a container has no privilege, no way out, a read-only root and no log, whatever the recipe says", () => {
  const plan = planContainer({ ...RECIPE, env: { TENDON_LANE: "mine", HOME: "/else" } }, OPTIONS);
  expect(plan.HostConfig).toMatchObject({
    NetworkMode: "none",
    ReadonlyRootfs: true,
    CapDrop: ["ALL"],
    Privileged: false,
    SecurityOpt: ["no-new-privileges:true"],
    LogConfig: { Type: "none" },
    IpcMode: "private",
  });
  expect(plan.HostConfig?.Binds).toBeUndefined();
  expect(plan.HostConfig?.MemorySwap).toBe(plan.HostConfig?.Memory);
  expect(plan.User).toMatch(/^(\d{5}):\1$/);
  expect(plan.Env).toContain("HOME=/else");
  expect(plan.Env).toContain("TENDON_LANE=1");
  expect(plan.Labels).toEqual({ "tendon.agent": "a1", "tendon.installation": "inst_1", "tendon.unit": "u1" });
});

test("units have users of their own, and a working directory elsewhere has a volume of its own", () => {
  expect(uidOf("u1")).toBe(uidOf("u1"));
  expect(uidOf("u1")).not.toBe(uidOf("u2"));
  expect(volumesOf("u1", "/hand/work/deep")).toHaveLength(1);
  expect(volumesOf("u1", "/handful").map(({ target }) => target)).toEqual(["/hand", "/handful"]);
});

test("processes belong to a call by variable, by pipe or by parent; lanes and zombies are no processes of the hand", () => {
  const stat = (pid: number, comm: string, state: string, ppid: number) =>
    `==> /proc/${pid}/stat <==\n${pid} (${comm}) ${state} ${ppid} ${pid} ${pid} 0 -1 0 0 0 0 0 7 3 1 1 20\n\n`;
  const environ = (pid: number, env: string) => `==> /proc/${pid}/environ <==\n${env}\n`;
  const text = [
    stat(1, "sh", "S", 0),
    stat(9, "b) S 1 (x", "S", 1),
    stat(12, "gone", "Z", 1),
    stat(20, "sleep", "S", 1),
    environ(1, "TENDON_LANE=1\0"),
    environ(9, "A=1\nB\0TENDON_HAND_ID=h\0TENDON_CALL_ID=call_1\0"),
    environ(20, "A=1\0"),
    "\n==> fds <==\nl-wx------ 1 5 5 64 Nov 29 22:00 /proc/20/fd/60 -> /run/tendon-hand/p3 (deleted)\n",
  ].join("");
  const rows = parseProcesses(text, (path) => (path === "/run/tendon-hand/p3" ? "call_2" : undefined));
  expect(rows.map(({ pid, command, callId, isOurs }) => [pid, command, callId, isOurs])).toEqual([
    [1, "sh", undefined, true],
    [9, "b) S 1 (x", "call_1", false],
    [20, "sleep", "call_2", false],
  ]);
  expect(rows[1]?.cpuMs).toBe(120);
});

test("the engine's address is read as DOCKER_HOST says it, and refused in words", () => {
  expect(engineAddress({})).toEqual({ socketPath: "/var/run/docker.sock" });
  expect(engineAddress({ host: "tcp://10.0.0.1" })).toEqual({
    protocol: "http",
    host: "10.0.0.1",
    port: 2375,
  });
  expect(engineAddress({ host: "tcp://[::1]:99" })).toEqual({ protocol: "http", host: "::1", port: 99 });
  expect(() => engineAddress({ host: "ssh://host" })).toThrow(
    /neither unix:\/\/\/path nor tcp:\/\/host:port/,
  );
  expect(() => engineAddress({ host: "tcp://h", tlsVerify: true })).toThrow(/needs DOCKER_CERT_PATH/);
  expect(() => engineAddress({ host: "tcp://h", tlsVerify: true, certPath: "/nowhere" })).toThrow(/ENOENT/);
});

test("rules come first in the chain of what leaves, each address once", () => {
  expect(rulesOf(["1.2.3.4", "1.2.3.4"], ["-p ipv6-icmp -j ACCEPT"])).toBe(
    "*filter\n:TENDON-HAND - [0:0]\n-I OUTPUT 1 -j TENDON-HAND\n-A TENDON-HAND -p ipv6-icmp -j ACCEPT\n-A TENDON-HAND -d 1.2.3.4 -j REJECT\nCOMMIT\n",
  );
});
