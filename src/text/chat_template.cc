// Chat templates are programs in Jinja. There is no engine here: a template is known by its whole
// text, and what it prints is written out below. All known ones are ChatML, each message as
// "<|im_start|>role\ncontent<|im_end|>\n"; they differ in the system message that they put in front
// when the conversation does not start with one.
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/error.h"
#include "deepinfer/text.h"
#include "json/json_node.h"
#include "json/quoted.h"

namespace deepinfer {
namespace {

struct KnownTemplate {
  std::string_view name;
  std::string_view text;
  std::string_view default_system;  // empty: none is put in front
};

// Line breaks stand as themselves here; published texts have either these or the two characters \n.
constexpr std::array kKnown = {
    // The instruct models of HuggingFaceTB/SmolLM2.
    KnownTemplate{"smollm2",
                  R"({% for message in messages %})"
                  R"({% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %})",
                  "You are a helpful AI assistant named SmolLM, trained by Hugging Face"},
    // Qwen1.5 and Qwen2 instruct models.
    KnownTemplate{"qwen2",
                  R"({% for message in messages %})"
                  R"({% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful assistant.<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %})",
                  "You are a helpful assistant."},
    // The example of the transformers documentation; OpenHermes.
    KnownTemplate{"chatml",
                  R"({% for message in messages %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %})",
                  ""},
    // The same with a default for add_generation_prompt: Dolphin, Nous-Hermes-2.
    KnownTemplate{"chatml",
                  R"({% if not add_generation_prompt is defined %})"
                  R"({% set add_generation_prompt = false %}{% endif %})"
                  R"({% for message in messages %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %})",
                  ""},
};

// The text in the form of kKnown. All line breaks of the known texts are inside of string literals,
// where \n means the same. At the end Jinja ignores two line breaks: the one after a block tag and
// the last of the file. More would be printed, so they make another template.
std::string comparable(std::string_view text) {
  for (int i = 0; i < 2 && text.ends_with('\n'); ++i) text.remove_suffix(1);
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool is_escape = text.substr(i, 2) == "\\n";
    out += is_escape ? '\n' : text[i];
    i += is_escape ? 1 : 0;
  }
  return out;
}

void append_message(std::string& out, std::string_view role, std::string_view content) {
  out.append("<|im_start|>").append(role).append("\n").append(content).append("<|im_end|>\n");
}

void check_role(const std::string& role) {
  if (role == "system" || role == "user" || role == "assistant") return;
  throw Error(ErrorCode::kInvalidArgument,
              "chat message: expected the role \"system\", \"user\" or \"assistant\", found " +
                  json::in_quotes(role));
}

// The member is one text, or in older files a list of named ones.
std::string template_of_config(const json::JsonNode& node) {
  if (node.is_null()) node.bad("expected a chat template, found none");
  if (!node.value().is_array()) return node.string();
  for (std::size_t i = 0; i < node.array().size(); ++i) {
    if (node[i]["name"].string() == "default") return node[i]["template"].string();
  }
  node.bad("expected a chat template named \"default\", found none");
}

}  // namespace

ChatTemplate ChatTemplate::from_directory(const std::filesystem::path& directory) {
  const std::filesystem::path jinja = directory / "chat_template.jinja";
  const std::filesystem::path config = directory / "tokenizer_config.json";
  const bool has_jinja = std::filesystem::exists(jinja);
  if (!has_jinja && !std::filesystem::exists(config)) {
    throw Error(ErrorCode::kBadInput, directory.string() +
                                          ": expected chat_template.jinja or "
                                          "tokenizer_config.json, found neither");
  }
  const std::filesystem::path& path = has_jinja ? jinja : config;
  std::string source = json::read_file(path);
  if (!has_jinja) {
    const std::string name = path.string();
    const json::Json json = json::parse_json(source, name);
    source = template_of_config(json::JsonNode(json, name)["chat_template"]);
  }
  try {
    return from_text(source);
  } catch (const Error& error) {
    throw Error(error.code(), path.string() + ": " + error.what());
  }
}

ChatTemplate ChatTemplate::from_text(std::string_view text) {
  const std::string wanted = comparable(text);
  for (std::size_t i = 0; i < kKnown.size(); ++i) {
    if (kKnown[i].text == wanted) return ChatTemplate(i);
  }
  std::string names;
  for (const std::string_view name : known()) names.append(names.empty() ? "" : ", ").append(name);
  throw Error(ErrorCode::kUnsupported, "chat template: expected one of the known texts (" + names +
                                           "), found another of " + std::to_string(text.size()) +
                                           " bytes");
}

std::vector<std::string_view> ChatTemplate::known() {
  std::vector<std::string_view> names;
  for (const KnownTemplate& known : kKnown) {
    if (names.empty() || names.back() != known.name) names.push_back(known.name);
  }
  return names;
}

std::string_view ChatTemplate::name() const noexcept { return kKnown[index_].name; }

std::string ChatTemplate::apply(std::span<const ChatMessage> messages) const {
  if (messages.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "chat: expected at least one message, found none");
  }
  for (const ChatMessage& message : messages) check_role(message.role);
  std::string out;
  const std::string_view default_system = kKnown[index_].default_system;
  if (!default_system.empty() && messages.front().role != "system") {
    append_message(out, "system", default_system);
  }
  for (const ChatMessage& message : messages) append_message(out, message.role, message.content);
  return out.append("<|im_start|>assistant\n");
}

}  // namespace deepinfer
