// Checks of a running server, one by name: `interop NAME`. Each fails when the server is not as the contract says.
//
// TENDON_ADDRESS is HOST:PORT, TENDON_API_KEY an admin's key.
#include <google/rpc/error_details.pb.h>
#include <google/rpc/status.pb.h>
#include <grpc/health/v1/health.grpc.pb.h>
#include <grpc/reflection/v1/reflection.grpc.pb.h>
#include <grpcpp/grpcpp.h>
#include <tendon/v1/agent_service.grpc.pb.h>
#include <tendon/v1/session_service.grpc.pb.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>

using namespace std::chrono_literals;
namespace pb = tendon::v1;

std::shared_ptr<grpc::Channel> channel;

void require(bool condition, const std::string& otherwise) {
  if (!condition) throw std::runtime_error(otherwise);
}

void require_ok(const grpc::Status& status) {
  require(status.ok(), std::to_string(status.error_code()) + " " + status.error_message());
}

// The options of one call: the credential, and a deadline.
struct Call : grpc::ClientContext {
  explicit Call(std::chrono::milliseconds deadline = 30s) {
    set_deadline(std::chrono::system_clock::now() + deadline);
    AddMetadata("authorization", std::string("Bearer ") + std::getenv("TENDON_API_KEY"));
  }
};

std::string create_session() {
  Call agent_call, session_call;
  pb::CreateAgentRequest agent_request;
  agent_request.mutable_spec()->set_name("interop");
  agent_request.mutable_spec()->add_tools()->mutable_hand_toolset();
  pb::CreateAgentResponse agent;
  require_ok(pb::AgentService::NewStub(channel)->CreateAgent(&agent_call, agent_request, &agent));
  pb::CreateSessionRequest session_request;
  session_request.set_agent_id(agent.agent().id());
  pb::CreateSessionResponse session;
  require_ok(pb::SessionService::NewStub(channel)->CreateSession(&session_call, session_request, &session));
  return session.session().id();
}

grpc::Status emit(const std::string& session_id, const std::string& text) {
  Call call;
  pb::EmitEventsRequest request;
  request.set_session_id(session_id);
  auto* event = request.add_events();
  event->set_type("user.message");
  event->set_payload(R"({"content":[{"type":"text","text":")" + text + R"("}]})");
  pb::EmitEventsResponse response;
  return pb::SessionService::NewStub(channel)->EmitEvents(&call, request, &response);
}

void reflection() {
  grpc::ClientContext call;
  auto stream = grpc::reflection::v1::ServerReflection::NewStub(channel)->ServerReflectionInfo(&call);
  grpc::reflection::v1::ServerReflectionRequest request;
  request.set_list_services("");
  grpc::reflection::v1::ServerReflectionResponse response;
  require(stream->Write(request) && stream->Read(&response), "no answer");
  bool found = false;
  for (const auto& service : response.list_services_response().service())
    found = found || service.name() == "tendon.v1.SessionService";
  require(found, response.ShortDebugString());
  stream->WritesDone();
  require_ok(stream->Finish());
}

void health() {
  grpc::ClientContext check_call, watch_call;
  auto stub = grpc::health::v1::Health::NewStub(channel);
  grpc::health::v1::HealthCheckRequest request;
  grpc::health::v1::HealthCheckResponse checked, watched;
  require_ok(stub->Check(&check_call, request, &checked));
  auto stream = stub->Watch(&watch_call, request);
  require(stream->Read(&watched), "watch says nothing");
  watch_call.TryCancel();
  stream->Finish();
  require(checked.status() == grpc::health::v1::HealthCheckResponse::SERVING && watched.status() == checked.status(),
          checked.ShortDebugString() + watched.ShortDebugString());
}

void session() {
  auto id = create_session();
  require_ok(emit(id, "run: echo $((6 * 7)) from c++"));
  Call call;
  pb::WatchEventsRequest request;
  request.set_session_id(id);
  auto stream = pb::SessionService::NewStub(channel)->WatchEvents(&call, request);
  pb::WatchEventsResponse message;
  bool answered = false;
  for (int64_t position = 1; stream->Read(&message);) {
    if (!message.has_event()) continue;
    const auto& event = message.event();
    require(event.position() == position++, "a position was left out before " + event.ShortDebugString());
    answered = answered || (event.type() == "agent.message" && event.payload().find("42 from c++") != std::string::npos);
    if (event.type() != "session.status_idle") continue;
    call.TryCancel();
    stream->Finish();
    return require(answered, "the session is idle without an answer");
  }
  require_ok(stream->Finish());
  throw std::runtime_error("the stream ended");
}

// Watches a quiet session until the stream ends with this code; then the channel must still work.
void watch_until(Call& call, grpc::StatusCode code) {
  auto id = create_session();
  auto stub = pb::SessionService::NewStub(channel);
  pb::WatchEventsRequest watch_request;
  watch_request.set_session_id(id);
  auto stream = stub->WatchEvents(&call, watch_request);
  pb::WatchEventsResponse message;
  while (stream->Read(&message)) continue;
  require(stream->Finish().error_code() == code, "the stream ended otherwise");
  Call get_call;
  pb::GetSessionRequest get_request;
  get_request.set_session_id(id);
  pb::GetSessionResponse session;
  require_ok(stub->GetSession(&get_call, get_request, &session));
}

void deadline() {
  Call call(500ms);
  watch_until(call, grpc::DEADLINE_EXCEEDED);
}

void cancel() {
  Call call;
  std::thread canceller([&] {
    std::this_thread::sleep_for(300ms);
    call.TryCancel();
  });
  watch_until(call, grpc::CANCELLED);
  canceller.join();
}

void error_details() {
  Call call;
  pb::GetEventsRequest request;
  request.set_session_id("sesn_nothing");
  request.set_limit(1001);
  pb::GetEventsResponse response;
  auto status = pb::SessionService::NewStub(channel)->GetEvents(&call, request, &response);
  require(status.error_code() == grpc::INVALID_ARGUMENT, status.error_message());
  require(call.GetServerTrailingMetadata().count("grpc-status-details-bin") == 1, "no details in the trailers");
  google::rpc::Status details;
  google::rpc::ErrorInfo info;
  require(details.ParseFromString(status.error_details()) && details.details_size() == 1, "no details");
  require(details.details(0).UnpackTo(&info) && info.reason() == "INVALID_FIELD" && info.metadata().at("field") == "limit",
          details.ShortDebugString());
}

void large_message() {
  auto id = create_session();
  auto status = emit(id, std::string(5 << 20, 'x'));
  require(status.error_code() == grpc::RESOURCE_EXHAUSTED, status.error_message());
  require_ok(emit(id, std::string(1 << 20, 'x')));
}

int main(int, char** argv) {
  const std::map<std::string, std::function<void()>> checks = {
      {"reflection", reflection}, {"health", health},           {"session", session},           {"deadline", deadline},
      {"cancel", cancel},         {"error_details", error_details}, {"large_message", large_message}};
  channel = grpc::CreateChannel(std::getenv("TENDON_ADDRESS"), grpc::InsecureChannelCredentials());
  try {
    checks.at(argv[1])();
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
