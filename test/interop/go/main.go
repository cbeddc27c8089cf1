// Checks of a running server, one by name: `interop NAME`. Each fails when the server is not as the contract says.
//
// TENDON_ADDRESS is HOST:PORT, TENDON_API_KEY an admin's key.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	pb "tendon.dev/interop/gen/tendon/v1"
)

var checks = map[string]func(context.Context, *grpc.ClientConn) error{
	"reflection":    reflection,
	"health":        health,
	"session":       session,
	"deadline":      deadline,
	"cancel":        cancel,
	"error_details": errorDetails,
	"large_message": largeMessage,
}

func main() {
	check := checks[os.Args[1]]
	conn, err := grpc.NewClient(os.Getenv("TENDON_ADDRESS"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err == nil {
		ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
		defer stop()
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+os.Getenv("TENDON_API_KEY"))
		err = check(ctx, conn)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func reflection(ctx context.Context, conn *grpc.ClientConn) error {
	stream, err := grpc_reflection_v1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		return err
	}
	request := &grpc_reflection_v1.ServerReflectionRequest{
		MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{},
	}
	if err := stream.Send(request); err != nil {
		return err
	}
	answer, err := stream.Recv()
	if err != nil {
		return err
	}
	var names []string
	for _, service := range answer.GetListServicesResponse().GetService() {
		names = append(names, service.Name)
	}
	if !slices.Contains(names, "tendon.v1.SessionService") {
		return fmt.Errorf("reflection lists %v", names)
	}
	return stream.CloseSend()
}

func health(ctx context.Context, conn *grpc.ClientConn) error {
	client := grpc_health_v1.NewHealthClient(conn)
	request := &grpc_health_v1.HealthCheckRequest{}
	answer, err := client.Check(ctx, request)
	if err != nil {
		return err
	}
	watch, err := client.Watch(ctx, request)
	if err != nil {
		return err
	}
	first, err := watch.Recv()
	if err != nil {
		return err
	}
	if answer.Status != grpc_health_v1.HealthCheckResponse_SERVING || first.Status != answer.Status {
		return fmt.Errorf("check says %v, watch says %v", answer.Status, first.Status)
	}
	return nil
}

func session(ctx context.Context, conn *grpc.ClientConn) error {
	id, err := createSession(ctx, conn)
	if err != nil {
		return err
	}
	if err := emit(ctx, conn, id, "run: echo $((6 * 7)) from go"); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	stream, err := pb.NewSessionServiceClient(conn).WatchEvents(ctx, &pb.WatchEventsRequest{SessionId: id})
	if err != nil {
		return err
	}
	answered := false
	for position := int64(1); ; {
		message, err := stream.Recv()
		if err != nil {
			return err
		}
		event := message.GetEvent()
		if event == nil {
			continue
		}
		if event.Position != position {
			return fmt.Errorf("position %d where %d comes next", event.Position, position)
		}
		position++
		answered = answered || event.Type == "agent.message" && strings.Contains(event.Payload, "42 from go")
		if event.Type == "session.status_idle" {
			if !answered {
				return errors.New("the session is idle without an answer")
			}
			return nil
		}
	}
}

func deadline(ctx context.Context, conn *grpc.ClientConn) error {
	return watchUntil(ctx, conn, codes.DeadlineExceeded, func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, 500*time.Millisecond)
	})
}

func cancel(ctx context.Context, conn *grpc.ClientConn) error {
	return watchUntil(ctx, conn, codes.Canceled, func(ctx context.Context) (context.Context, context.CancelFunc) {
		ctx, stop := context.WithCancel(ctx)
		time.AfterFunc(200*time.Millisecond, stop)
		return ctx, stop
	})
}

// watchUntil watches a quiet session under a context that ends, and wants the code; then the connection must still work.
func watchUntil(
	ctx context.Context, conn *grpc.ClientConn, want codes.Code,
	end func(context.Context) (context.Context, context.CancelFunc),
) error {
	id, err := createSession(ctx, conn)
	if err != nil {
		return err
	}
	client := pb.NewSessionServiceClient(conn)
	ending, stop := end(ctx)
	defer stop()
	started := time.Now()
	stream, err := client.WatchEvents(ending, &pb.WatchEventsRequest{SessionId: id})
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != want || time.Since(started) > 5*time.Second {
		return fmt.Errorf("after %v: %w", time.Since(started), err)
	}
	_, err = client.GetSession(ctx, &pb.GetSessionRequest{SessionId: id})
	return err
}

func errorDetails(ctx context.Context, conn *grpc.ClientConn) error {
	client := pb.NewSessionServiceClient(conn)
	var trailer metadata.MD
	_, err := client.GetSession(ctx, &pb.GetSessionRequest{SessionId: "sesn_nothing"}, grpc.Trailer(&trailer))
	if len(trailer.Get("grpc-status-details-bin")) != 1 {
		return fmt.Errorf("trailers %v", trailer)
	}
	if err := wantError(err, codes.NotFound, "NOT_FOUND", "resource", "session"); err != nil {
		return err
	}
	_, err = client.GetEvents(ctx, &pb.GetEventsRequest{SessionId: "sesn_nothing", Limit: 1001})
	return wantError(err, codes.InvalidArgument, "INVALID_FIELD", "field", "limit")
}

func wantError(err error, code codes.Code, reason, key, value string) error {
	failure := status.Convert(err)
	for _, detail := range failure.Details() {
		info, ok := detail.(*errdetails.ErrorInfo)
		if ok && failure.Code() == code && info.Reason == reason && info.Metadata[key] == value {
			return nil
		}
	}
	return fmt.Errorf("not the error that was wanted: %w, with %v", err, failure.Details())
}

func largeMessage(ctx context.Context, conn *grpc.ClientConn) error {
	id, err := createSession(ctx, conn)
	if err != nil {
		return err
	}
	err = emit(ctx, conn, id, strings.Repeat("x", 5<<20))
	if status.Code(err) != codes.ResourceExhausted {
		return fmt.Errorf("5 MiB: %w", err)
	}
	return emit(ctx, conn, id, strings.Repeat("x", 1<<20))
}

func createSession(ctx context.Context, conn *grpc.ClientConn) (string, error) {
	toolset := &pb.Tool{Kind: &pb.Tool_HandToolset{HandToolset: &pb.HandToolset{}}}
	agent, err := pb.NewAgentServiceClient(conn).CreateAgent(ctx, &pb.CreateAgentRequest{
		RequestId: rand.Text(),
		Spec:      &pb.AgentSpec{Name: "interop", Tools: []*pb.Tool{toolset}},
	})
	if err != nil {
		return "", err
	}
	session, err := pb.NewSessionServiceClient(conn).CreateSession(ctx, &pb.CreateSessionRequest{
		RequestId: rand.Text(),
		AgentId:   agent.Agent.Id,
	})
	return session.GetSession().GetId(), err
}

func emit(ctx context.Context, conn *grpc.ClientConn, sessionID, text string) error {
	block := map[string]string{"type": "text", "text": text}
	payload, err := json.Marshal(map[string]any{"content": []any{block}})
	if err != nil {
		return err
	}
	_, err = pb.NewSessionServiceClient(conn).EmitEvents(ctx, &pb.EmitEventsRequest{
		SessionId: sessionID,
		Events:    []*pb.EventInput{{Type: "user.message", Payload: string(payload)}},
	})
	return err
}
