#include "board.h"

#include <pybind11/numpy.h>

#include <cstring>

#include "support.h"

namespace pysampler::bindings {
namespace {

using Words = std::atomic<std::uint64_t>;

struct BoardLayout {
    BoardLayout(std::uint64_t words_each, std::uint64_t buffers)
        : stamps(sizeof(BoardCell)),
          words(stamps + buffers * sizeof(Board::Stamp)),
          bytes(words + buffers * words_each * sizeof(Words)) {}

    std::size_t stamps;
    std::size_t words;
    std::size_t bytes;
};

class PyBoard : public Handle {
 public:
    PyBoard(const PySegment& segment, std::uint64_t words_each, std::uint32_t buffers,
            const py::object& offset, const std::optional<WaitPolicy>& policy)
        : Handle("board", segment.segment(),
                 place(segment, offset, BoardLayout(words_each, buffers).bytes)),
          layout_(words_each, buffers),
          cell_(reinterpret_cast<BoardCell*>(this->segment()->at(this->offset(), layout_.bytes))),
          board_(cell_, at<Board::Stamp>(layout_.stamps), at<Words>(layout_.words), buffers,
                 words_each),
          site_(policy) {
        named("Board");
        if (offset.is_none()) new (cell_) BoardCell;
    }

    std::uint64_t begin() {
        check("publish to");
        return board_.begin();
    }

    // The bytes of one field, to word `at` of the version begun.
    void write(std::uint64_t at, const py::array& field) {
        check("publish to");
        const auto bytes = static_cast<std::size_t>(field.nbytes());
        if (!(field.flags() & py::array::c_style) || at > board_.words_each() ||
            round_up(bytes, 8) / 8 > board_.words_each() - at) {
            throw py::value_error("cannot publish to board: the field does not fit");
        }
        const auto* from = static_cast<const std::byte*>(field.data());
        const auto keep_mapped = segment();
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

    std::uint64_t publish() {
        check("publish to");
        return board_.publish();
    }

    // Copies the newest version; its number, 0 if there is none.
    std::uint64_t read(py::array_t<std::uint64_t>& out) {
        check("read");
        if (static_cast<std::uint64_t>(out.size()) != board_.words_each() ||
            !(out.flags() & py::array::c_style)) {
            throw py::value_error("cannot read board: buffer of " + std::to_string(out.size()) +
                                  " words, expected " + std::to_string(board_.words_each()));
        }
        std::uint64_t* to = out.mutable_data();
        const auto keep_mapped = segment();
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

    bool wait(std::uint64_t version, const Seconds& timeout, const Nanoseconds& deadline) {
        check("wait on");
        const std::int64_t until = deadline_of(timeout, deadline);
        const auto keep_mapped = segment();
        const Outcome outcome =
            site_([&](WaitPolicy& policy) { return board_.wait_version(version, until, policy); });
        if (outcome == Outcome::kLost) lost("wait on", "writer");
        return outcome == Outcome::kReady;
    }

    std::uint64_t version() const {
        check("look at");
        return board_.version();
    }
    Part writer() const {
        check("watch");
        return {"board's writer",
                [segment = segment(), cell = cell_](int) { cell->version.mark_lost(); }};
    }
    void replaced() {
        check("use");
        board_.clear_lost();
    }

    std::string state() const {
        if (closed()) return repr("");
        std::string text = "version " + std::to_string(board_.version()) + ", " +
                           std::to_string(board_.buffers()) + " buffers of " +
                           std::to_string(board_.words_each() * 8) + " bytes";
        if (board_.writer_lost()) text += ", writer lost";
        return repr(text);
    }

 private:
    template <class T>
    T* at(std::size_t offset) {
        return reinterpret_cast<T*>(reinterpret_cast<std::byte*>(cell_) + offset);
    }

    BoardLayout layout_;
    BoardCell* cell_;
    Board board_;
    Site site_;
};

}  // namespace

void register_board(py::module_& m) {
    const auto none = py::none();
    py::class_<PyBoard>(m, "Board")
        .def(py::init<const PySegment&, std::uint64_t, std::uint32_t, const py::object&,
                      const std::optional<WaitPolicy>&>(),
             py::arg("segment"), py::arg("words"), py::arg("buffers"), py::arg("offset") = none,
             py::arg("policy") = std::nullopt)
        .def("_begin", &PyBoard::begin)
        .def("_write", &PyBoard::write, py::arg("at"), py::arg("field"))
        .def("_publish_words", &PyBoard::publish)
        .def("_read_words", &PyBoard::read, py::arg("out").noconvert())
        .def("_wait_version", &PyBoard::wait, py::arg("version"), py::kw_only(),
             py::arg("timeout") = none, py::arg("deadline") = none)
        .def("writer", &PyBoard::writer, "What a Watch marks lost when the writer dies.")
        .def("replaced", &PyBoard::replaced,
             "The writer that died has been replaced: waits are waits again.")
        .def("close", &PyBoard::close, "Let go of the memory.")
        .def_property_readonly("version", &PyBoard::version,
                               "The newest version; 0 if there is none yet.")
        .def_property_readonly("closed", &PyBoard::closed, "Whether close() was called.")
        .def_property_readonly("offset", &PyBoard::offset, "Where it begins in its segment.")
        .def_static(
            "size_of",
            [](std::uint64_t words, std::uint32_t buffers) {
                return BoardLayout(words, buffers).bytes;
            },
            py::arg("words"), py::arg("buffers"))
        .def("__repr__", &PyBoard::state);
}

}  // namespace pysampler::bindings
