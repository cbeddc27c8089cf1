// The short acceptance of the HTTP API, by the official SDK for Go.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/anthropics/anthropic-sdk-go/v2/option"
	"github.com/anthropics/anthropic-sdk-go/v2/packages/param"
)

var (
	ctx    = context.Background()
	client = anthropic.NewClient(
		option.WithBaseURL(os.Getenv("TENDON_URL")),
		option.WithAPIKey(os.Getenv("TENDON_API_KEY")),
		option.WithMaxRetries(0),
	)
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func check(holds bool, what string, seen ...any) {
	if !holds {
		panic(fmt.Sprintf("%s: %+v", what, seen))
	}
}

func checkRefused(err error, status int) {
	var refusal *anthropic.Error
	check(errors.As(err, &refusal) && refusal.StatusCode == status, fmt.Sprintf("expected %d", status), err)
}

// A file with its name, as a form has it.
type named struct {
	io.Reader
	name string
}

func (file named) Filename() string { return file.name }

func agentsAndEnvironments() (agent, environment string) {
	made := must(client.Beta.Agents.New(ctx, anthropic.BetaAgentNewParams{
		Name:  "go",
		Model: anthropic.BetaManagedAgentsModelConfigParams{ID: "claude-test"},
		Tools: []anthropic.BetaAgentNewParamsToolUnion{{OfCustom: &anthropic.BetaManagedAgentsCustomToolParams{
			Name:        "ask_user",
			Description: "Asks.",
			InputSchema: anthropic.BetaManagedAgentsCustomToolInputSchemaParam{Properties: map[string]any{}},
		}}},
	}))
	changed := must(client.Beta.Agents.Update(ctx, made.ID, anthropic.BetaAgentUpdateParams{
		Version:     param.NewOpt(made.Version),
		Description: param.NewOpt("changed"),
	}))
	check(changed.Version == 2, "an update makes a version", changed)
	var versions []int64
	pages := client.Beta.Agents.Versions.ListAutoPaging(ctx, made.ID, anthropic.BetaAgentVersionListParams{})
	for pages.Next() {
		versions = append(versions, pages.Current().Version)
	}
	check(slices.Equal(versions, []int64{2, 1}), "versions are listed", versions, pages.Err())
	place := must(client.Beta.Environments.New(ctx, anthropic.BetaEnvironmentNewParams{Name: "go " + made.ID}))
	return made.ID, place.ID
}

func send(session string, event anthropic.BetaManagedAgentsEventParamsUnion) {
	must(client.Beta.Sessions.Events.Send(ctx, session, anthropic.BetaSessionEventSendParams{
		Events: []anthropic.BetaManagedAgentsEventParamsUnion{event},
	}))
}

// The ids of what the stream shows until the turn is over, each once, and what the agent said last.
func follow(session string) (ids []string, said string) {
	stream := client.Beta.Sessions.Events.StreamEvents(ctx, session, anthropic.BetaSessionEventStreamParams{})
	defer stream.Close()
	send(session, anthropic.BetaManagedAgentsEventParamsUnion{
		OfUserMessage: &anthropic.BetaManagedAgentsUserMessageEventParams{
			Content: []anthropic.BetaManagedAgentsUserMessageEventParamsContentUnion{
				{OfText: &anthropic.BetaManagedAgentsTextBlockParam{Text: "ask the user"}},
			},
		},
	})
	for stream.Next() {
		event := stream.Current()
		if !slices.Contains(ids, event.ID) {
			ids = append(ids, event.ID)
		}
		switch event.Type {
		case "agent.message":
			said = event.RawJSON()
		case "agent.custom_tool_use":
			send(session, anthropic.BetaManagedAgentsEventParamsUnion{
				OfUserCustomToolResult: &anthropic.BetaManagedAgentsUserCustomToolResultEventParams{
					CustomToolUseID: event.ID,
					Content: []anthropic.BetaManagedAgentsUserCustomToolResultEventParamsContentUnion{
						{OfText: &anthropic.BetaManagedAgentsTextBlockParam{Text: "the user's answer"}},
					},
				},
			})
		case "session.status_idle":
			if strings.Contains(event.RawJSON(), "end_turn") {
				return ids, said
			}
		}
	}
	panic(fmt.Sprintf("the stream ended early: %v", stream.Err()))
}

func sessions(agent, environment string) {
	session := must(client.Beta.Sessions.New(ctx, anthropic.BetaSessionNewParams{
		Agent:         anthropic.BetaSessionNewParamsAgentUnion{OfString: param.NewOpt(agent)},
		EnvironmentID: environment,
	}))
	check(session.Status == "idle", "a session begins idle", session.Status)
	ids, said := follow(session.ID)
	check(strings.Contains(said, "the user's answer"), "the agent has the answer", said)
	var history []string
	pages := client.Beta.Sessions.Events.ListAutoPaging(ctx, session.ID, anthropic.BetaSessionEventListParams{
		Limit: param.NewOpt[int64](2),
	})
	for pages.Next() {
		history = append(history, pages.Current().ID)
	}
	check(slices.Equal(history, ids), "the history is what the stream has shown", history, ids, pages.Err())
	_, err := client.Beta.Sessions.Events.Send(ctx, session.ID, anthropic.BetaSessionEventSendParams{
		Events: []anthropic.BetaManagedAgentsEventParamsUnion{},
	})
	checkRefused(err, 400)
	must(client.Beta.Sessions.Archive(ctx, session.ID, anthropic.BetaSessionArchiveParams{}))
	must(client.Beta.Sessions.Delete(ctx, session.ID, anthropic.BetaSessionDeleteParams{}))
	_, err = client.Beta.Sessions.Get(ctx, session.ID, anthropic.BetaSessionGetParams{})
	checkRefused(err, 404)
}

func vaults() {
	vault := must(client.Beta.Vaults.New(ctx, anthropic.BetaVaultNewParams{DisplayName: "go"}))
	auth := anthropic.BetaVaultCredentialNewParamsAuthUnion{
		OfStaticBearer: &anthropic.BetaManagedAgentsStaticBearerCreateParams{
			Token:        "secret-of-go",
			MCPServerURL: "https://mcp.example.com/mcp",
		},
	}
	made := must(client.Beta.Vaults.Credentials.New(ctx, vault.ID, anthropic.BetaVaultCredentialNewParams{Auth: auth}))
	check(!strings.Contains(made.RawJSON(), "secret-of-go"), "a secret is not shown", made.RawJSON())
	listed := must(client.Beta.Vaults.Credentials.List(ctx, vault.ID, anthropic.BetaVaultCredentialListParams{}))
	check(len(listed.Data) == 1 && listed.Data[0].ID == made.ID, "credentials are listed", listed)
	must(client.Beta.Vaults.Delete(ctx, vault.ID, anthropic.BetaVaultDeleteParams{}))
}

func filesAndSkills() {
	file := must(client.Beta.Files.Upload(ctx, anthropic.BetaFileUploadParams{
		File: named{strings.NewReader("hello, file"), "hello.txt"},
	}))
	check(file.Filename == "hello.txt" && file.SizeBytes == 11, "a file is uploaded", file)
	download := must(client.Beta.Files.Download(ctx, file.ID, anthropic.BetaFileDownloadParams{}))
	content := must(io.ReadAll(download.Body))
	check(string(content) == "hello, file", "a file is downloaded", content)
	must(client.Beta.Files.Delete(ctx, file.ID, anthropic.BetaFileDeleteParams{}))
	manifest := "---\nname: greeting-go\ndescription: Greets.\n---\nSay hello.\n"
	skill := must(client.Beta.Skills.New(ctx, anthropic.BetaSkillNewParams{
		Files: []io.Reader{named{strings.NewReader(manifest), "greeting-go/SKILL.md"}},
	}))
	latest := must(client.Beta.Skills.Versions.Get(ctx, "latest", anthropic.BetaSkillVersionGetParams{SkillID: skill.ID}))
	check(latest.Name == "greeting-go", "a skill has its name", latest)
	archive := must(client.Beta.Skills.Versions.Download(ctx, latest.ID, anthropic.BetaSkillVersionDownloadParams{
		SkillID: skill.ID,
	}))
	check(strings.HasPrefix(string(must(io.ReadAll(archive.Body))), "PK"), "a skill is downloaded as an archive")
	must(client.Beta.Skills.Delete(ctx, skill.ID, anthropic.BetaSkillDeleteParams{}))
}

func memory() {
	store := must(client.Beta.MemoryStores.New(ctx, anthropic.BetaMemoryStoreNewParams{Name: "go"}))
	made := must(client.Beta.MemoryStores.Memories.New(ctx, store.ID, anthropic.BetaMemoryStoreMemoryNewParams{
		Path:    "/a/one.md",
		Content: param.NewOpt("first"),
	}))
	read := must(client.Beta.MemoryStores.Memories.Get(ctx, made.ID, anthropic.BetaMemoryStoreMemoryGetParams{
		MemoryStoreID: store.ID,
	}))
	check(read.Content == "first", "a memory is read", read)
	must(client.Beta.MemoryStores.Delete(ctx, store.ID, anthropic.BetaMemoryStoreDeleteParams{}))
}

func sdkVersion() string {
	build, _ := debug.ReadBuildInfo()
	for _, module := range build.Deps {
		if strings.HasPrefix(module.Path, "github.com/anthropics/anthropic-sdk-go") {
			return module.Version
		}
	}
	return "of an unknown version"
}

func main() {
	sessions(agentsAndEnvironments())
	vaults()
	filesAndSkills()
	memory()
	fmt.Println("accepted by anthropic-sdk-go", sdkVersion())
}
