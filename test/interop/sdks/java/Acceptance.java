// The short acceptance of the HTTP API, by the official SDK for Java.

import com.anthropic.client.AnthropicClient;
import com.anthropic.client.okhttp.AnthropicOkHttpClient;
import com.anthropic.core.MultipartField;
import com.anthropic.core.http.HttpResponse;
import com.anthropic.core.http.StreamResponse;
import com.anthropic.errors.AnthropicServiceException;
import com.anthropic.models.beta.agents.AgentCreateParams;
import com.anthropic.models.beta.agents.AgentUpdateParams;
import com.anthropic.models.beta.agents.BetaManagedAgentsCustomToolInputSchema;
import com.anthropic.models.beta.agents.BetaManagedAgentsCustomToolParams;
import com.anthropic.models.beta.agents.BetaManagedAgentsModelConfigParams;
import com.anthropic.models.beta.environments.EnvironmentCreateParams;
import com.anthropic.models.beta.files.FileUploadParams;
import com.anthropic.models.beta.memorystores.MemoryStoreCreateParams;
import com.anthropic.models.beta.memorystores.memories.MemoryCreateParams;
import com.anthropic.models.beta.memorystores.memories.MemoryRetrieveParams;
import com.anthropic.models.beta.sessions.SessionCreateParams;
import com.anthropic.models.beta.sessions.events.BetaManagedAgentsStreamSessionEvents;
import com.anthropic.models.beta.sessions.events.BetaManagedAgentsTextBlock;
import com.anthropic.models.beta.sessions.events.BetaManagedAgentsUserCustomToolResultEventParams;
import com.anthropic.models.beta.sessions.events.BetaManagedAgentsUserMessageEventParams;
import com.anthropic.models.beta.sessions.events.EventListParams;
import com.anthropic.models.beta.sessions.events.EventSendParams;
import com.anthropic.models.beta.skills.SkillCreateParams;
import com.anthropic.models.beta.skills.versions.VersionDownloadParams;
import com.anthropic.models.beta.skills.versions.VersionRetrieveParams;
import com.anthropic.models.beta.vaults.VaultCreateParams;
import com.anthropic.models.beta.vaults.credentials.BetaManagedAgentsStaticBearerCreateParams;
import com.anthropic.models.beta.vaults.credentials.CredentialCreateParams;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Objects;

public final class Acceptance {
    private static final AnthropicClient client = AnthropicOkHttpClient.builder()
            .baseUrl(System.getenv("TENDON_URL"))
            .apiKey(System.getenv("TENDON_API_KEY"))
            .maxRetries(0)
            .build();

    public static void main(String[] args) throws IOException {
        sessions();
        vaults();
        files();
        skills();
        memory();
        System.out.println("accepted by anthropic-java " + AnthropicClient.class.getPackage().getImplementationVersion());
        // Its connections would keep the program for a minute.
        System.exit(0);
    }

    private static void check(boolean holds, String what) {
        if (!holds) throw new AssertionError(what);
    }

    private static void checkRefused(int status, Runnable call) {
        try {
            call.run();
        } catch (AnthropicServiceException refusal) {
            check(refusal.statusCode() == status, "expected " + status + ": " + refusal);
            return;
        }
        throw new AssertionError("expected " + status);
    }

    private static String newSession() {
        var tool = BetaManagedAgentsCustomToolParams.builder()
                .name("ask_user")
                .description("Asks.")
                .inputSchema(BetaManagedAgentsCustomToolInputSchema.builder()
                        .properties(BetaManagedAgentsCustomToolInputSchema.Properties.builder().build())
                        .build())
                .build();
        var agent = client.beta().agents().create(AgentCreateParams.builder()
                .name("java")
                .model(BetaManagedAgentsModelConfigParams.builder().id("claude-test").build())
                .addTool(tool)
                .build());
        var changed = client.beta().agents().update(AgentUpdateParams.builder()
                .agentId(agent.id())
                .version(agent.version())
                .description("changed")
                .build());
        check(changed.version() == 2, "an update makes a version: " + changed);
        var versions = client.beta().agents().versions().list(agent.id()).autoPager().stream()
                .map(version -> (long) version.version())
                .toList();
        check(versions.equals(List.of(2L, 1L)), "versions are listed: " + versions);
        var environment = client.beta().environments()
                .create(EnvironmentCreateParams.builder().name("java " + agent.id()).build());
        var session = client.beta().sessions().create(SessionCreateParams.builder()
                .agent(agent.id())
                .environmentId(environment.id())
                .build());
        check(session.status().toString().equals("idle"), "a session begins idle: " + session);
        return session.id();
    }

    private static BetaManagedAgentsTextBlock text(String words) {
        return BetaManagedAgentsTextBlock.builder()
                .text(words)
                .build();
    }

    /** What the agent said last, once the turn is over. */
    private static String follow(String sessionId) {
        String said = "";
        try (StreamResponse<BetaManagedAgentsStreamSessionEvents> stream =
                client.beta().sessions().events().streamStreaming(sessionId)) {
            client.beta().sessions().events().send(EventSendParams.builder()
                    .sessionId(sessionId)
                    .addUserMessageEvent(List.of(
                            BetaManagedAgentsUserMessageEventParams.Content.ofText(text("ask the user"))))
                    .build());
            for (var event : (Iterable<BetaManagedAgentsStreamSessionEvents>) stream.stream()::iterator) {
                if (event.isAgentMessage()) said = event.asAgentMessage().toString();
                if (event.isAgentCustomToolUse()) {
                    client.beta().sessions().events().send(EventSendParams.builder()
                            .sessionId(sessionId)
                            .addEvent(BetaManagedAgentsUserCustomToolResultEventParams.builder()
                                    .customToolUseId(event.asAgentCustomToolUse().id())
                                    .addTextContent("the user's answer")
                                    .build())
                            .build());
                }
                if (event.isSessionStatusIdle() && event.asSessionStatusIdle().stopReason().isEndTurn()) return said;
            }
        }
        throw new AssertionError("the stream ended early");
    }

    private static void sessions() {
        var sessionId = newSession();
        var said = follow(sessionId);
        check(said.contains("the user's answer"), "the agent has the answer: " + said);
        var history = client.beta().sessions().events()
                .list(EventListParams.builder().sessionId(sessionId).limit(2).build())
                .autoPager().stream().count();
        check(history > 8, "the history is read page by page: " + history);
        checkRefused(400, () -> client.beta().sessions().events()
                .send(EventSendParams.builder().sessionId(sessionId).events(List.of()).build()));
        client.beta().sessions().archive(sessionId);
        client.beta().sessions().delete(sessionId);
        checkRefused(404, () -> client.beta().sessions().retrieve(sessionId));
    }

    private static void vaults() {
        var vault = client.beta().vaults().create(VaultCreateParams.builder().displayName("java").build());
        var made = client.beta().vaults().credentials().create(CredentialCreateParams.builder()
                .vaultId(vault.id())
                .auth(BetaManagedAgentsStaticBearerCreateParams.builder()
                        .token("secret-of-java")
                        .mcpServerUrl("https://mcp.example.com/mcp")
                        .build())
                .build());
        check(!made.toString().contains("secret-of-java"), "a secret is not shown: " + made);
        var listed = client.beta().vaults().credentials().list(vault.id()).autoPager().stream()
                .map(credential -> credential.id())
                .toList();
        check(listed.equals(List.of(made.id())), "credentials are listed: " + listed);
        client.beta().vaults().delete(vault.id());
    }

    private static MultipartField<InputStream> file(String name, String text) {
        return MultipartField.<InputStream>builder()
                .value(new ByteArrayInputStream(text.getBytes(StandardCharsets.UTF_8)))
                .filename(name)
                .build();
    }

    private static byte[] bytes(HttpResponse response) throws IOException {
        try (response) {
            return Objects.requireNonNull(response.body()).readAllBytes();
        }
    }

    private static void files() throws IOException {
        var file = client.beta().files()
                .upload(FileUploadParams.builder().file(file("hello.txt", "hello, file")).build());
        check(file.filename().equals("hello.txt") && file.sizeBytes() == 11, "a file is uploaded: " + file);
        var content = new String(bytes(client.beta().files().download(file.id())), StandardCharsets.UTF_8);
        check(content.equals("hello, file"), "a file is downloaded: " + content);
        client.beta().files().delete(file.id());
    }

    private static void skills() throws IOException {
        var manifest = "---\nname: greeting-java\ndescription: Greets.\n---\nSay hello.\n";
        var skill = client.beta().skills().create(SkillCreateParams.builder()
                .addFile(file("greeting-java/SKILL.md", manifest))
                .build());
        var versions = client.beta().skills().versions();
        var latest = versions.retrieve("latest", VersionRetrieveParams.builder().skillId(skill.id()).build());
        check(latest.name().equals("greeting-java"), "a skill has its name: " + latest);
        var archive = bytes(versions.download(
                latest.id(), VersionDownloadParams.builder().skillId(skill.id()).build()));
        check(archive[0] == 'P' && archive[1] == 'K', "a skill is downloaded as an archive");
        client.beta().skills().delete(skill.id());
    }

    private static void memory() {
        var store = client.beta().memoryStores().create(MemoryStoreCreateParams.builder().name("java").build());
        var memories = client.beta().memoryStores().memories();
        var made = memories.create(MemoryCreateParams.builder()
                .memoryStoreId(store.id())
                .path("/a/one.md")
                .content("first")
                .build());
        var read = memories.retrieve(
                made.id(), MemoryRetrieveParams.builder().memoryStoreId(store.id()).build());
        check(read.content().orElse("").equals("first"), "a memory is read: " + read);
        client.beta().memoryStores().delete(store.id());
    }
}
