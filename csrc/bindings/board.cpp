#include "board.h"

#include <cstring>
#include <utility>
#include <vector>

#include "support.h"

namespace pysampler::bindings {
namespace {

using Words = std::atomic<std::uint64_t>;

// More versions than will ever be published; positions compare up to half their range.
constexpr std::uint64_t kMaxVersions = 1ULL << 60;

struct BoardLayout {
    BoardLayout(const py::object& words_of_one, const py::object& buffer_count)
        : words_each(whole(words_of_one, "make board", "words", 0)),
          buffers(whole(buffer_count, "make board", "buffers", 1)),
          stamps(sizeof(BoardCell)),
          words(stamps + buffers * sizeof(Board::Stamp)) {
        constexpr std::uint64_t kMaxBytes = 1ULL << 60;
        if (buffers > UINT32_MAX || words_each > kMaxBytes / sizeof(Words) / buffers) {
            throw py::value_error("cannot make board: " + std::to_string(buffers) + " buffers of " +
                                  std::to_string(words_each) + " words are too large");
        }
        bytes = words + buffers * words_each * sizeof(Words);
    }

    std::uint64_t words_each;
    std::uint64_t buffers;
    std::size_t stamps;
    std::size_t words;
    std::size_t bytes;
};

class PyBoard : public Handle {
 public:
    PyBoard(const PySegment& segment, const py::object& words, const py::object& buffers,
            const py::object& offset, const std::optional<WaitPolicy>& policy)
        : PyBoard(segment, BoardLayout(words, buffers), offset, policy) {}

    // Publishes fields, each at a word, as a new version.
    std::uint64_t publish(const std::vector<std::pair<std::uint64_t, py::array>>& fields) {
        const Turn turn(*this, writing_, "publish to");
        board_.begin();
        for (const auto& [at, field] : fields) write(at, field);
        return board_.publish();
    }

    // Copies the newest version and returns its number, or 0 if there is none.
    std::uint64_t read(py::array_t<std::uint64_t>& out) {
        const Pin pin(*this, "read");
        if (static_cast<std::uint64_t>(out.size()) != board_.words_each() ||
            !(out.flags() & py::array::c_style) || !out.writeable()) {
            throw py::value_error("cannot read board: buffer of " + std::to_string(out.size()) +
                                  " words, expected " + std::to_string(board_.words_each()) +
                                  ", contiguous and writeable");
        }
        std::uint64_t* to = out.mutable_data();
        for (;;) {
            std::uint64_t version;
            {
                Released released;
                version = board_.read(0, {to, board_.words_each()}, 1);
            }
            if (version != 0 || board_.version() == 0) return version;
            if (PyErr_CheckSignals() != 0) throw py::error_already_set();
        }
    }

    bool wait(const py::object& newer_than, const Seconds& timeout, const Nanoseconds& deadline) {
        const std::uint64_t version = whole(newer_than, "wait on board", "newer_than", 0) + 1;
        if (version > kMaxVersions) {
            throw py::value_error("cannot wait on board: newer_than " + text(version - 1) +
                                  ", expected one below 2**60");
        }
        const std::int64_t until = deadline_of(timeout, deadline);
        const Pin pin(*this, "wait on");
        const Outcome outcome =
            site_([&](WaitPolicy& policy) { return board_.wait_version(version, until, policy); });
        if (outcome == Outcome::kLost) lost("wait on", "writer");
        return outcome == Outcome::kReady;
    }

    std::uint64_t version() const {
        const Pin pin(*this, "look at");
        return board_.version();
    }
    Part writer() const {
        const Pin pin(*this, "watch");
        return {"board's writer",
                [segment = pin.segment(), cell = cell_](int) { cell->version.mark_lost(); }};
    }
    void replaced() {
        const Pin pin(*this, "use");
        board_.clear_lost();
    }

    std::string state() const {
        return repr([this] {
            std::string text = "version " + std::to_string(board_.version()) + ", " +
                               std::to_string(board_.buffers()) + " buffers of " +
                               std::to_string(board_.words_each() * 8) + " bytes";
            if (board_.writer_lost()) text += ", writer lost";
            return text;
        });
    }

 private:
    // Writes the bytes of one field at word `at` of the version under way.
    void write(std::uint64_t at, const py::array& field) {
        const auto bytes = static_cast<std::size_t>(field.nbytes());
        if (!(field.flags() & py::array::c_style) || at > board_.words_each() ||
            round_up(bytes, 8) / 8 > board_.words_each() - at) {
            throw py::value_error("cannot publish to board: the field does not fit, " +
                                  std::to_string(bytes) + " bytes at word " + std::to_string(at) +
                                  ", expected contiguous ones within " +
                                  std::to_string(board_.words_each()) + " words");
        }
        const auto* from = static_cast<const std::byte*>(field.data());
        Released released;
        std::size_t done = 0;
        if (reinterpret_cast<std::uintptr_t>(from) % 8 == 0) {
            const std::size_t whole_words = bytes / 8;
            board_.write(at, {reinterpret_cast<const std::uint64_t*>(from), whole_words});
            done = whole_words * 8;
        }
        for (; done < bytes; done += 8) {
            std::uint64_t word = 0;
            std::memcpy(&word, from + done, std::min<std::size_t>(8, bytes - done));
            board_.write(at + done / 8, {&word, 1});
        }
    }

    PyBoard(const PySegment& segment, const BoardLayout& layout, const py::object& offset,
            const std::optional<WaitPolicy>& policy)
        : PyBoard(Place(segment, offset, layout.bytes), layout, policy) {}

    PyBoard(const Place& place, const BoardLayout& layout, const std::optional<WaitPolicy>& policy)
        : Handle("board", place.segment, place.at),
          cell_(place.make<BoardCell>()),
          board_(cell_, reinterpret_cast<Board::Stamp*>(place.memory + layout.stamps),
                 reinterpret_cast<Words*>(place.memory + layout.words),
                 static_cast<std::uint32_t>(layout.buffers), layout.words_each),
          site_(policy) {
        named("Board");
    }

    BoardCell* cell_;
    Board board_;
    Site site_;
    Side writing_;
};

}  // namespace

void register_board(py::module_& m) {
    const auto none = py::none();
    HandleClass<PyBoard>(m, "Board")
        .def(py::init<const PySegment&, const py::object&, const py::object&, const py::object&,
                      const std::optional<WaitPolicy>&>(),
             py::arg("segment"), py::arg("words"), py::arg("buffers"), py::arg("offset") = none,
             py::arg("policy") = std::nullopt)
        .def("_publish", &PyBoard::publish, py::arg("fields"))
        .def("_read_words", &PyBoard::read, py::arg("out").noconvert())
        .def("wait", &PyBoard::wait, py::arg("newer_than") = 0, py::kw_only(),
             py::arg("timeout") = none, py::arg("deadline") = none,
             "Wait for a newer version.\n\n"
             "Args:\n"
             "    newer_than: The version that the caller has; 0 if none.\n" PYSAMPLER_WAIT_ARGS
             "\n"
             "Returns:\n"
             "    False if there is no newer version at the deadline.\n\n"
             "Raises:\n"
             "    LostError: There is no newer version, and the writer is known to be dead.\n")
        .def("writer", &PyBoard::writer,
             "Return the part that a Watch marks lost when the writer dies.")
        .def("replaced", &PyBoard::replaced,
             "Forget the loss of the writer: another process has taken its place.")
        .def_property_readonly("version", &PyBoard::version,
                               "The newest version; 0 if there is none yet.")
        .def_static(
            "size_of",
            [](const py::object& words, const py::object& buffers) {
                return BoardLayout(words, buffers).bytes;
            },
            py::arg("words"), py::arg("buffers"),
            "Return how many bytes a board of this size takes in a segment.");
}

}  // namespace pysampler::bindings
