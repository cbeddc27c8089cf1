/** A server is killed between the end of a tamper-evident session's turn and its signature: the next one makes up for it. */
import { expect, test } from "vitest";
import { openLog } from "../../cli/verify/open-log.ts";
import { verifyLog } from "../../cli/verify/verify-log.ts";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { startDatabasePlatform } from "../kit/database-platform.ts";
import { eventually } from "../kit/eventually.ts";

test("what it should have signed is signed after its restart, once, and the log fits", async () => {
  const platform = await startDatabasePlatform({ programs: [] });
  try {
    const sessions = platform.client(SessionService);
    async function* chunksOf(sessionId: string) {
      for await (const { chunk } of sessions.exportSession({ sessionId })) yield chunk;
    }
    const verdictOf = async (sessionId: string) => verifyLog(await openLog(chunksOf(sessionId)));
    const { workspace } = await platform.client(AdminService).getWorkspace({});
    await platform.client(AdminService).updateWorkspace({ workspaceId: workspace!.id, tamperEvident: true });
    const { agent } = await platform.client(AgentService).createAgent({ spec: { name: "t" } });
    await platform.program("server").end("SIGTERM");
    const dying = await platform.start("server", { TENDON_FAILPOINTS: "server.before_checkpoint=kill" });

    // It has work and no brain comes to it, so nothing of it is signed before it is archived.
    const payload = '{"content":[{"type":"text","text":"go"}]}';
    const { session } = await sessions.createSession({
      agentId: agent!.id,
      initialEvents: [{ type: "user.message", payload }],
    });
    const sessionId = session!.id;
    // Its last event makes it rest; the answer may not come any more.
    await sessions.archiveSession({ sessionId }).catch(() => {});
    expect(await dying.ended).toBe("SIGKILL");

    await platform.start("server");
    expect(await verdictOf(sessionId)).toMatchObject({ events: 2, problems: [] });
    const verdict = await eventually(
      async () => {
        const found = await verdictOf(sessionId);
        return found.checkpoints === 1 && found;
      },
      { withinMs: 60_000 },
    );
    expect(verdict).toMatchObject({ events: 2, signedUpTo: 2, problems: [], keys: [{ isServers: true }] });
  } finally {
    await platform.stop();
  }
});
