/** Where hands are made, how many there may be, and how they are given back. */
import { randomBytes } from "node:crypto";
import { afterEach, describe, expect, test } from "vitest";
import { ExecutionOutcome, HandState } from "../../proto/gen/tendon/v1/hand_pb.js";
import { BUILTIN_TOOLS } from "../../server/hand/builtin-tools.ts";
import { eventually } from "../kit/eventually.ts";
import { collectExecution as collect, gate, textOfResult as textOf } from "../kit/execution-stream.ts";
import type { HandRig, RigSession } from "../kit/hand-rig.ts";
import { runningCall } from "../kit/running-call.ts";
import { DEFAULT_TOOLS, textResult } from "../kit/scripted-hand-agent.ts";
import { useHandRig } from "../kit/use-hand-rig.ts";

let rig: HandRig;

useHandRig((fresh) => {
  rig = fresh;
});

describe("placement", () => {
  test("follows pool, labels, driver and room, and says why a hand waits", async () => {
    const plain = await rig.agent({ name: "plain", greeting: { capacityHands: 1 } });
    const labelled = await rig.agent({
      name: "gpu",
      pool: "lab",
      greeting: { labels: { gpu: "yes", zone: "a" } },
    });
    await plain.connect();
    await labelled.connect();
    const where = async (spec: object) => {
      const environmentId = await rig.environment({ provisionTimeoutMs: 60_000, ...spec });
      return rig.client.provision({ requestId: randomBytes(8).toString("hex"), environmentId });
    };
    const inLab = { pool: "lab", labels: { gpu: "yes" } };
    expect((await where(inLab)).hand?.handAgentId).toBe(labelled.handAgentId);
    expect((await where({ pool: "lab" })).hand?.handAgentId).toBe(labelled.handAgentId);
    // Time enough for one look: without one nobody could say why.
    const fails = async (spec: object, text: RegExp, reason = "NO_HAND_AGENT") =>
      expect(where({ provisionTimeoutMs: 1_000, ...spec })).rejects.toMatchObject({
        reason,
        message: expect.stringMatching(text),
      });
    await Promise.all([
      fails({ labels: { gpu: "no" } }, /carries the labels gpu=no/),
      fails({ pool: "attic" }, /pool "attic"/),
      fails({ driver: "docker", image: "debian:12" }, /driver "docker"/),
      fails({ selfHosted: true }, /self-hosted/, "NOT_CONFIGURED"),
      // A pool is for what names it: its free places are nobody else's.
      fails({ labels: { gpu: "yes" } }, /carries the labels gpu=yes/),
    ]);
    expect((await where({})).hand?.handAgentId).toBe(plain.handAgentId);
    await fails({}, /full/);
  });

  test("a self-hosted environment is served by a hand agent whose label says so, else by workers: for each session by who was first, for good", async () => {
    const environmentId = await rig.environment({ selfHosted: true });
    const other = await rig.environment({ selfHosted: true });
    // As the one that everybody has.
    const plain = await rig.agent({ name: "plain" });
    await plain.connect();
    const call = async (session: RigSession) => {
      const kinds: (string | undefined)[] = [];
      for await (const { kind } of rig.client.execute(await session.toolUse("bash", { command: "x" })))
        kinds.push(kind.case);
      return kinds.filter((kind) => kind !== "output");
    };
    const early = await rig.session(environmentId);
    expect(await call(early)).toEqual(["offered"]);
    const willing = await rig.agent({
      name: "willing",
      greeting: { labels: { self_hosted: environmentId } },
    });
    await willing.connect();
    expect(await call(early)).toEqual(["offered"]);
    const late = await rig.session(environmentId);
    expect(await call(late)).toEqual(["bound", "result"]);
    expect(await call(await rig.session(other))).toEqual(["offered"]);
    const everywhere = await rig.agent({ name: "everywhere", greeting: { labels: { self_hosted: "true" } } });
    await everywhere.connect();
    expect(await call(await rig.session(other))).toEqual(["bound", "result"]);
    const states = await rig.pool.query("select session_id from work_items order by created_at");
    expect(states.rowCount).toBe(2);
    // Nobody makes a hand ahead of a call that workers will run.
    const ahead = {
      requestId: "ahead",
      sessionId: early.id,
      speculative: true,
      lease: (await early.toolUse("bash", {})).lease,
    };
    await expect(rig.client.provision(ahead)).rejects.toMatchObject({ reason: "NOT_CONFIGURED" });
  });

  test("a request that failed may be made again under its id", async () => {
    const environmentId = await rig.environment({ provisionTimeoutMs: 300 });
    const request = { requestId: "again", environmentId };
    await expect(rig.client.provision(request)).rejects.toMatchObject({ reason: "NO_HAND_AGENT" });
    await rig.limitProvisioning(environmentId, 60_000);
    const agent = await rig.agent();
    await agent.connect();
    const { hand } = await rig.client.provision(request);
    expect(hand?.state).toBe(HandState.READY);
    expect((await rig.client.provision(request)).hand?.id).toBe(hand?.id);
  });

  test("provisioning goes on when the agent reconnects, as the same hand (R15)", async () => {
    const { open, opened } = gate<object>();
    const agent = await rig.agent({ onProvision: () => opened });
    await agent.connect();
    const provisioned = rig.client.provision({ requestId: "slow" });
    await eventually(() => agent.heard.some((kind) => kind.case === "provision"));
    await agent.disconnect();
    agent.onProvision = undefined;
    await agent.connect();
    const { hand } = await provisioned;
    open({});
    const asked = agent.heard.flatMap((kind) => (kind.case === "provision" ? [kind.value.handId] : []));
    expect(new Set(asked)).toEqual(new Set([hand!.id]));
  });

  test("concurrent calls of one session share one hand", async () => {
    const agent = await rig.agent();
    await agent.connect();
    const session = await rig.session();
    const calls = await Promise.all([1, 2, 3, 4].map((n) => session.toolUse("echo", { text: String(n) })));
    const ran = await Promise.all(calls.map((call) => collect(rig.harness.execute(call))));
    expect(new Set(ran.map(({ hand }) => hand)).size).toBe(1);
    expect(await session.events("hand.provisioned")).toHaveLength(1);
  });

  test("an image that an agent gets while it is connected counts from then on", async () => {
    const offer = (images: string[]) => ({
      drivers: [
        { name: "docker", available: true, detail: "", tools: DEFAULT_TOOLS, capabilities: [], images },
      ],
    });
    const crowded = await rig.agent({ name: "crowded", greeting: { ...offer([]), capacityHands: 2 } });
    const roomy = await rig.agent({ name: "roomy", greeting: offer([]) });
    await crowded.connect();
    await roomy.connect();
    const environmentId = await rig.environment({ driver: "docker", image: "debian:12" });
    const made = async () =>
      (await rig.client.provision({ requestId: randomBytes(8).toString("hex"), environmentId })).hand;
    expect((await made())?.handAgentId).toBe(roomy.handAgentId);
    crowded.say({ case: "imagesChanged", value: { driver: "docker", images: ["debian:12"] } });
    crowded.say({ case: "imagesChanged", value: { driver: "nonsense", images: ["debian:12"] } });
    await eventually(async () => {
      const { handAgents } = await rig.admin.listHandAgents({});
      const { drivers } = handAgents.find(({ id }) => id === crowded.handAgentId)!;
      return drivers.length === 1 && drivers[0]!.images.includes("debian:12");
    });
    const next = await made();
    expect(next?.handAgentId).toBe(crowded.handAgentId);
    expect(next?.stateDetail).toMatch(/image/);
  });
});

describe("a workspace's limit of hands", () => {
  const limit = (hands: number) =>
    rig.pool.query("update workspaces set limits = $2 where workspace_id = $1", [
      rig.workspaceId,
      JSON.stringify({ hands }),
    ]);
  const provision = () => rig.client.provision({ requestId: randomBytes(8).toString("hex") });
  const exceeded = {
    reason: "LIMIT_EXCEEDED",
    message: expect.stringContaining("all 2 hands"),
    metadata: expect.objectContaining({ limit: "hands", most: "2" }),
  };
  afterEach(() => limit(0));

  test("refuses what is beyond it with the reason, also of many at once, and counts parked hands", async () => {
    const agent = await rig.agent({ greeting: { capacityHands: 100 } });
    await agent.connect();
    await limit(2);
    const asked = await Promise.allSettled(Array.from({ length: 6 }, provision));
    const made = asked.flatMap((one) => (one.status === "fulfilled" ? [one.value.hand!.id] : []));
    expect(made).toHaveLength(2);
    for (const one of asked) if (one.status === "rejected") expect(one.reason).toMatchObject(exceeded);
    await rig.pool.query("update hands set state = 'parked', parked_at = now() where hand_id = $1", [
      made[0],
    ]);
    await expect(provision()).rejects.toMatchObject(exceeded);
    await rig.client.releaseHand({ handId: made[1]! });
    await provision();
  });

  test("answers the call of a brain with one result that says so, and leaves the hands that are there alone (X3)", async () => {
    const agent = await rig.agent();
    await agent.connect();
    const first = await rig.session();
    await collect(rig.harness.execute(await first.toolUse("echo", { text: "1" })));
    await limit(1);
    const second = await rig.session();
    const refused = await collect(rig.harness.execute(await second.toolUse("echo", { text: "2" })));
    expect(refused.result).toMatchObject({
      isError: true,
      outcome: ExecutionOutcome.NOT_STARTED,
      failure: { reason: "LIMIT_EXCEEDED" },
    });
    expect(textOf(refused.result)).toMatch(/the one hand that it may have at a time/);
    expect(await second.events("agent.tool_result")).toHaveLength(1);
    const goesOn = await collect(rig.harness.execute(await first.toolUse("echo", { text: "3" })));
    expect(textOf(goesOn.result)).toBe("3");
  });
});

describe("releasing", () => {
  test("destroys the hand, tells the log, and ends what ran in it", async () => {
    const { agent, session, open } = await runningCall(rig);
    agent.run = () => textResult("unused");
    const [hand] = (await rig.client.listHands({ sessionId: session.id })).hands;
    const { hand: released } = await rig.client.releaseHand({ handId: hand!.id });
    expect(released?.state).toBe(HandState.RELEASED);
    expect(agent.hands.size).toBe(0);
    expect((await session.events("hand.released"))[0]?.payload).toMatchObject({ hand_id: hand!.id });
    expect((await rig.client.releaseHand({ handId: hand!.id })).hand?.state).toBe(HandState.RELEASED);
    expect(await session.events("hand.released")).toHaveLength(1);
    open(textResult("killed", { isError: true, outcome: ExecutionOutcome.CANCELLED } as never));
    await eventually(async () => (await session.events("agent.tool_result")).length === 1);
  });

  test("while the agent is away is kept and done when it comes back", async () => {
    const agent = await rig.agent();
    await agent.connect();
    const session = await rig.session();
    const { hand } = await collect(rig.harness.execute(await session.toolUse("echo", { text: "1" })));
    await agent.disconnect();
    await rig.area.control.releaseSession(session.id);
    expect((await rig.client.getHand({ handId: hand! })).hand?.state).toBe(HandState.RELEASED);
    expect(agent.hands.has(hand!)).toBe(true);
    await agent.connect();
    await eventually(() => !agent.hands.has(hand!));
    expect(await session.events("hand.lost")).toEqual([]);
  });

  test("is refused for a fenced brain and hidden from other workspaces", async () => {
    const agent = await rig.agent();
    await agent.connect();
    const session = await rig.session();
    const { hand } = await collect(rig.harness.execute(await session.toolUse("echo", { text: "1" })));
    const { lease } = session;
    await session.takeOver();
    await expect(rig.harness.releaseHand({ handId: hand!, lease })).rejects.toMatchObject({
      reason: "LEASE_FENCED",
    });
    const stranger = rig.hands({ kind: "client", keyId: "k", workspaceId: "wrkspc_other" });
    await expect(stranger.releaseHand({ handId: hand! })).rejects.toMatchObject({ reason: "NOT_FOUND" });
    await expect(stranger.getHand({ handId: hand! })).rejects.toMatchObject({ reason: "NOT_FOUND" });
    expect((await stranger.listHands({ includeEnded: true })).hands).toEqual([]);
  });
});

describe("tool lists", () => {
  test("a session is promised its driver's tools, and keeps that list", async () => {
    const session = await rig.session();
    const ask = { sessionId: session.id, environmentId: rig.environmentId, slotEnvironmentIds: {} };
    const other = await rig.session();
    const [builtin] = await rig.area.control.slotTools(ask);
    expect(builtin?.tools).toEqual(BUILTIN_TOOLS);
    const agent = await rig.agent();
    await agent.connect();
    expect((await rig.area.control.slotTools(ask))[0]?.digest).toBe(builtin?.digest);
    const [offered] = await rig.area.control.slotTools({ ...ask, sessionId: other.id });
    expect(offered?.tools).toEqual(DEFAULT_TOOLS);
    const slots = await rig.area.control.slotTools({
      ...ask,
      slotEnvironmentIds: { web: rig.environmentId },
    });
    expect(slots.map(({ slot }) => slot).sort()).toEqual(["", "web"]);
  });
});
