// What simdjson's on-demand parser takes to bring a Kineto trace into the columns that gpuscope's core makes of it: a
// yardstick, which copes with no damaged file, checks no bounds of a time and orders nothing.
//
// simdjson_walk FILE: prints events, columns' bytes and seconds. The file is gunzipped, padded and in memory before.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "simdjson.h"

using namespace simdjson;

struct Columns {
    std::vector<int64_t> start, end, correlation, stream, device, bytes;
    std::vector<uint32_t> name, thread;
    std::vector<uint8_t> category;
    size_t size() const
    {
        return 8 * (start.size() + end.size() + correlation.size() + stream.size() + device.size() + bytes.size())
               + 4 * (name.size() + thread.size()) + category.size();
    }
};

template <typename Key> struct Numbered {
    std::unordered_map<Key, uint32_t> seen;
    uint32_t of(const Key &key) { return seen.emplace(key, (uint32_t)seen.size()).first->second; }
};

// Microseconds in decimal to ns, exactly: a double has no room for today's ns.
static int64_t stamp(std::string_view text)
{
    int64_t total = 0, places = -1;
    for (char letter : text) {
        if (letter == '.')
            places = 0;
        else if (letter >= '0' && letter <= '9' && places < 3)
            total = total * 10 + (letter - '0'), places += places >= 0;
    }
    for (places = places < 0 ? 0 : places; places < 3; places++)
        total *= 10;
    return total;
}

static int64_t integer(ondemand::value value)
{
    int64_t found;
    return value.get_int64().get(found) == SUCCESS ? found : INT64_MIN;
}

int main(int count, char **words)
{
    padded_string text;
    if (count != 2 || padded_string::load(words[1]).get(text) != SUCCESS)
        return std::fputs("simdjson_walk FILE\n", stderr), 2;
    auto began = std::chrono::steady_clock::now();
    ondemand::parser parser;
    ondemand::document document;
    if (parser.iterate(text).get(document) != SUCCESS)
        return 1;
    Columns host, device;
    Numbered<std::string_view> names, categories;
    Numbered<int64_t> threads;
    size_t events = 0;
    for (auto field : document.get_object()) {
        if (field.escaped_key().value() != "traceEvents")
            continue;
        for (auto element : field.value().get_array()) {
            ondemand::object event = element.get_object();
            std::string_view name, category, phase, ts, dur;
            int64_t process = 0, thread = 0, correlation = INT64_MIN, stream = INT64_MIN, where = INT64_MIN,
                    bytes = INT64_MIN;
            events++;
            for (auto one : event) {
                std::string_view key = one.escaped_key();
                if (key == "ph")
                    phase = one.value().get_string();
                else if (key == "name")
                    name = one.value().raw_json_token(); // its text stays in the document; escapes are left
                else if (key == "cat")
                    category = one.value().raw_json_token();
                else if (key == "ts")
                    ts = one.value().raw_json_token();
                else if (key == "dur")
                    dur = one.value().raw_json_token();
                else if (key == "pid")
                    process = integer(one.value());
                else if (key == "tid")
                    thread = integer(one.value());
                else if (key == "args" && phase == "X")
                    for (auto argument : one.value().get_object()) {
                        std::string_view own = argument.escaped_key();
                        if (own == "correlation" || own == "External id")
                            correlation = integer(argument.value());
                        else if (own == "stream")
                            stream = integer(argument.value());
                        else if (own == "device")
                            where = integer(argument.value());
                        else if (own == "bytes")
                            bytes = integer(argument.value());
                    }
            }
            if (phase != "X")
                continue;
            Columns &into = where == INT64_MIN ? host : device;
            into.start.push_back(stamp(ts)), into.end.push_back(stamp(ts) + stamp(dur));
            into.correlation.push_back(correlation), into.name.push_back(names.of(name));
            into.category.push_back((uint8_t)categories.of(category));
            into.thread.push_back(threads.of(process << 32 ^ thread));
            if (where != INT64_MIN)
                into.stream.push_back(stream), into.device.push_back(where), into.bytes.push_back(bytes);
        }
    }
    std::chrono::duration<double> spent = std::chrono::steady_clock::now() - began;
    std::printf("{\"events\": %zu, \"column_bytes\": %zu, \"wall_s\": %.4f}\n", events, host.size() + device.size(),
                spent.count());
}
