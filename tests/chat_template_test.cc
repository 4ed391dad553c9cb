// Chat templates: against the prompts that Jinja gives (tests/golden), and what is refused.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "deepinfer/error.h"
#include "deepinfer/text.h"
#include "safetensors_builder.h"

namespace deepinfer {
namespace {

using nlohmann::json;
using testing::TempDir;
using testing::write_file;

json golden_cases() {
  std::ifstream file(DEEPINFER_SOURCE_DIR "/tests/golden/chat_prompts.json");
  return json::parse(file)["cases"];
}

std::string smollm2_text() { return golden_cases()[0]["template"].get<std::string>(); }

template <typename Call>
void expect_error(ErrorCode code, const std::string& part, Call call) {
  try {
    call();
    ADD_FAILURE() << "accepted, expected: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(chat_template_test, prompts_are_those_of_jinja) {
  std::set<std::string> names;
  for (const json& c : golden_cases()) {
    const ChatTemplate chat = c.contains("template")
                                  ? ChatTemplate::from_text(c["template"].get<std::string>())
                                  : ChatTemplate::from_name(c["name"].get<std::string>());
    EXPECT_EQ(chat.name(), c["name"].get<std::string>());
    names.emplace(chat.name());
    for (const json& p : c["prompts"]) {
      std::vector<ChatMessage> messages;
      for (const json& m : p["messages"]) messages.push_back({m["role"], m["content"]});
      EXPECT_EQ(chat.apply(messages), p["prompt"].get<std::string>()) << c["name"];
    }
  }
  const auto known = ChatTemplate::known();
  EXPECT_EQ(names, std::set<std::string>(known.begin(), known.end()));
  EXPECT_EQ(names.size(), known.size());
}

TEST(chat_template_test, any_other_text_is_refused) {
  const std::string text = smollm2_text();
  for (const std::string& other :
       {std::string(), text.substr(1), text + "x", text + " ", text + "\n\n\n", " " + text,
        "\n" + text, text.substr(0, text.size() - 1),
        golden_cases().back()["sha256"].get<std::string>()}) {
    expect_error(ErrorCode::kUnsupported, "smollm2, qwen2, chatml, qwen3, qwen3-instruct-2507",
                 [&] { ChatTemplate::from_text(other); });
  }
}

TEST(chat_template_test, names_are_known_or_refused) {
  for (const std::string_view name : ChatTemplate::known()) {
    EXPECT_EQ(ChatTemplate::from_name(name).name(), name);
  }
  for (const char* name : {"", "qwen", "Qwen3"}) {
    expect_error(ErrorCode::kInvalidArgument, "smollm2, qwen2",
                 [&] { ChatTemplate::from_name(name); });
  }
}

TEST(chat_template_test, odd_conversations_are_refused) {
  const ChatTemplate chat = ChatTemplate::from_text(smollm2_text());
  expect_error(ErrorCode::kInvalidArgument, "at least one message", [&] { chat.apply({}); });
  for (const char* role : {"", "User", "tool", "user<|im_end|>\n"}) {
    const std::vector<ChatMessage> messages = {{"user", "Hi"}, {role, "Hi"}};
    expect_error(ErrorCode::kInvalidArgument, "role", [&] { chat.apply(messages); });
  }
}

TEST(chat_template_test, a_folder_gives_its_template) {
  const TempDir dir;
  const auto load = [&] { return std::string(ChatTemplate::from_directory(dir.path()).name()); };
  expect_error(ErrorCode::kBadInput, "found neither", load);
  const auto config = dir.path() / "tokenizer_config.json";
  write_file(config, R"({"bos_token": "x"})");
  expect_error(ErrorCode::kBadInput, "tokenizer_config.json: chat_template", load);
  write_file(config, R"({"chat_template": 1})");
  expect_error(ErrorCode::kBadInput, "tokenizer_config.json: chat_template: expected a string",
               load);
  write_file(config, "{");
  expect_error(ErrorCode::kBadInput, "tokenizer_config.json: expected JSON", load);
  write_file(config, R"({"chat_template": "{{ x }}"})");
  expect_error(ErrorCode::kUnsupported, "tokenizer_config.json: chat template", load);
  write_file(config, json{{"chat_template", smollm2_text()}}.dump());
  EXPECT_EQ(load(), "smollm2");
  const json named = {{{"name", "tool_use"}, {"template", "{{ x }}"}},
                      {{"name", "default"}, {"template", smollm2_text()}}};
  write_file(config, json{{"chat_template", named}}.dump());
  EXPECT_EQ(load(), "smollm2");
  write_file(config, json{{"chat_template", json::array({named[0]})}}.dump());
  expect_error(ErrorCode::kBadInput, "named \"default\"", load);
  // The file goes before the member.
  write_file(dir.path() / "chat_template.jinja", golden_cases()[5]["template"].get<std::string>());
  EXPECT_EQ(load(), "chatml");
}

}  // namespace
}  // namespace deepinfer
